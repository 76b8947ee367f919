//! Answers about tasks, written by hand into one buffer. Nearly all answers are such; serde takes a dozen small steps for
//! each field where two do. The text is the one that serde gives: a test compares them.

use axum::{
    body::Body,
    http::{HeaderValue, header},
    response::{IntoResponse, Response},
};
use serde::Serialize;

use super::ROOM;
use crate::{
    domain::time::UnixMs,
    http::problem::{Kind, Problem},
};

/// What can be written by hand.
pub trait Written {
    /// Puts the JSON text behind what is there.
    ///
    /// # Errors
    /// Those of what is left to serde.
    fn write(&self, out: &mut Vec<u8>) -> serde_json::Result<()>;

    /// About how many bytes that takes.
    fn room(&self) -> usize {
        ROOM
    }
}

/// Room for what stands around a list; a cursor is the most of it.
const FRAME: usize = 256;

/// About how many bytes an answer takes that is a list.
pub fn room_of<T: Written>(items: &[T]) -> usize {
    FRAME + items.iter().map(Written::room).sum::<usize>()
}

/// An answer that is written by hand.
pub struct ByHand<T>(pub T);

impl<T: Written> ByHand<T> {
    /// The body's text.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn text(&self) -> Result<Vec<u8>, Problem> {
        let mut text = Vec::with_capacity(self.0.room());
        match self.0.write(&mut text) {
            Ok(()) => Ok(text),
            Err(_) => Err(Problem::new(Kind::Internal, "the answer cannot be written")),
        }
    }
}

impl<T: Written> IntoResponse for ByHand<T> {
    fn into_response(self) -> Response {
        match self.text() {
            Ok(text) => json_of(Body::from(text)),
            Err(problem) => problem.into_response(),
        }
    }
}

/// A body of JSON.
pub fn json_of(body: Body) -> Response {
    let mut response = Response::new(body);
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// Puts fields one behind the other. Each `name` is given with all that stands between the values: `,"name":`.
pub struct Fields<'o> {
    out: &'o mut Vec<u8>,
    /// The last instant that was written: mostly the next one is the same.
    last: Option<(UnixMs, [u8; 24])>,
}

impl<'o> Fields<'o> {
    /// Behind what is there.
    pub fn new(out: &'o mut Vec<u8>) -> Self {
        Self { out, last: None }
    }

    /// What stands between values.
    pub fn put(&mut self, text: &str) {
        self.out.extend_from_slice(text.as_bytes());
    }

    /// A text in which nothing needs an escape: a name, an id, a word of ours.
    pub fn plain(&mut self, name: &str, text: &str) {
        self.put(name);
        self.out.push(b'"');
        self.put(text);
        self.out.push(b'"');
    }

    /// The same, or `null`.
    pub fn plain_or_null(&mut self, name: &str, text: Option<&str>) {
        match text {
            Some(text) => self.plain(name, text),
            None => self.null(name),
        }
    }

    /// An instant, or `null`.
    pub fn at(&mut self, name: &str, at: Option<super::At>) -> serde_json::Result<()> {
        let Some(super::At(at)) = at else {
            self.null(name);
            return Ok(());
        };
        let last = self.last.filter(|(last, _)| *last == at).map(|(_, digits)| digits);
        let Some(digits) = last.or_else(|| at.digits()) else { return self.json(name, &super::At(at)) };
        self.last = Some((at, digits));
        self.put(name);
        self.out.push(b'"');
        self.out.extend_from_slice(&digits);
        self.out.push(b'"');
        Ok(())
    }

    /// `true` or `false`.
    pub fn switch(&mut self, name: &str, on: bool) {
        self.put(name);
        self.put(if on { "true" } else { "false" });
    }

    /// Anything, or `null`.
    pub fn json_or_null<T: Serialize>(&mut self, name: &str, value: Option<&T>) -> serde_json::Result<()> {
        match value {
            Some(value) => self.json(name, value),
            None => {
                self.null(name);
                Ok(())
            }
        }
    }

    /// What is rare, or needs more than this can do.
    pub fn json<T: Serialize + ?Sized>(&mut self, name: &str, value: &T) -> serde_json::Result<()> {
        self.put(name);
        serde_json::to_writer(&mut *self.out, value)
    }

    /// A list of what can be written.
    pub fn list<T: Written>(&mut self, name: &str, items: &[T]) -> serde_json::Result<()> {
        self.put(name);
        self.put("[");
        for (i, item) in items.iter().enumerate() {
            if i > 0 {
                self.put(",");
            }
            item.write(self.out)?;
        }
        self.put("]");
        Ok(())
    }

    fn null(&mut self, name: &str) {
        self.put(name);
        self.put("null");
    }
}

#[cfg(test)]
mod tests;
