//! What it means when no answer's head came: an outcome, and one line for the user.

use std::{error::Error, io};

use super::{connection::Trouble, guard::DialError, stream::UNASKED_BYTES_MAX};
use crate::domain::attempt::Outcome;

/// Longest text of an error, in bytes; certificates can hold long lists of names.
const TEXT_MAX: usize = 256;

/// Classifies what came instead of an answer.
pub fn explain(trouble: &Trouble) -> (Outcome, String) {
    let (outcome, text) = match trouble {
        Trouble::Dial(error) => {
            let outcome = match error {
                DialError::Blocked => Outcome::Blocked,
                DialError::Timeout(_) => Outcome::Timeout,
                _ => Outcome::Unreachable,
            };
            (outcome, error.to_string())
        }
        Trouble::Http(error) => (Outcome::Unreachable, of_http(error)),
    };
    (outcome, one_line(&text))
}

fn of_http(error: &hyper::Error) -> String {
    let mut chain = std::iter::successors(Some(error as &(dyn Error + 'static)), |&e| e.source());
    let known = chain.find_map(|link| {
        if let Some(error) = link.downcast_ref::<io::Error>() {
            return Some(of_io(error));
        }
        match link.downcast_ref::<hyper::Error>()? {
            e if e.is_parse_too_large() => Some("the answer's head is larger than 16 KiB or 100 headers".to_owned()),
            e if e.is_parse() => Some(format!("not a valid HTTP answer: {e}")),
            e if e.is_incomplete_message() => Some("connection closed before an answer".to_owned()),
            _ => None,
        }
    });
    known.unwrap_or_else(|| "connection lost".to_owned())
}

/// Trouble on a connection that stood.
fn of_io(error: &io::Error) -> String {
    if error.get_ref().is_some_and(|inner| inner.is::<rustls::Error>()) {
        return format!("TLS: {error}");
    }
    match error.kind() {
        io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => "connection reset".to_owned(),
        io::ErrorKind::UnexpectedEof => "connection closed before an answer".to_owned(),
        io::ErrorKind::FileTooLarge => format!("more than {} KiB came before an answer", UNASKED_BYTES_MAX >> 10),
        other => format!("connection lost: {other}"),
    }
}

/// A text as one line of bearable length.
pub fn one_line(text: &str) -> String {
    let mut line = String::new();
    for c in text.chars().map(|c| if c.is_control() { ' ' } else { c }) {
        if line.len() + c.len_utf8() > TEXT_MAX {
            break;
        }
        line.push(c);
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_one_line_of_bearable_length() {
        assert_eq!(one_line("a\r\nb\tc"), "a  b c");
        let long = one_line(&"é".repeat(1000));
        assert!(long.len() <= TEXT_MAX && long.chars().all(|c| c == 'é'));
    }
}
