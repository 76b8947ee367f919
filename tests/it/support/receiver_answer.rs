//! What the receiver may be told to do with a request.

use std::time::Duration;

use tokio_util::sync::CancellationToken;

#[derive(Debug, Clone)]
pub struct Answer {
    pub(super) gate: Option<Gate>,
    pub(super) delay: Duration,
    pub(super) how: How,
}

#[derive(Debug, Clone)]
pub(super) enum How {
    Bytes { bytes: Vec<u8>, close: bool },
    Drip { bytes: Vec<u8>, every: Duration },
    Hang,
    Close,
    Reset,
}

impl Answer {
    /// An answer with this status, no headers of its own and no body.
    pub fn status(status: u16) -> StatusAnswer {
        StatusAnswer { status, headers: Vec::new(), body: Vec::new() }
    }

    /// These bytes, whatever they are; the connection stays open.
    pub fn raw(bytes: impl Into<Vec<u8>>) -> Self {
        Self::new(How::Bytes { bytes: bytes.into(), close: false })
    }

    /// These bytes, then the end of the connection.
    pub fn raw_then_close(bytes: impl Into<Vec<u8>>) -> Self {
        Self::new(How::Bytes { bytes: bytes.into(), close: true })
    }

    /// No answer, until the client gives up.
    pub fn hang() -> Self {
        Self::new(How::Hang)
    }

    /// The end of the connection in place of an answer.
    pub fn close() -> Self {
        Self::new(How::Close)
    }

    /// A reset in place of an answer.
    pub fn reset() -> Self {
        Self::new(How::Reset)
    }

    /// After this pause.
    pub fn after(mut self, delay: Duration) -> Self {
        self.delay = delay;
        self
    }

    /// Not before the test opens the gate.
    pub fn held_by(mut self, gate: &Gate) -> Self {
        self.gate = Some(gate.clone());
        self
    }

    /// Byte by byte, with this pause after each.
    pub fn drip(mut self, every: Duration) -> Self {
        if let How::Bytes { bytes, .. } = self.how {
            self.how = How::Drip { bytes, every };
        }
        self
    }

    fn new(how: How) -> Self {
        Self { gate: None, delay: Duration::ZERO, how }
    }
}

/// A well-formed answer in the making.
#[derive(Debug, Clone)]
pub struct StatusAnswer {
    status: u16,
    headers: Vec<(String, String)>,
    body: Vec<u8>,
}

impl StatusAnswer {
    pub fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    pub fn body(mut self, body: impl Into<Vec<u8>>) -> Self {
        self.body = body.into();
        self
    }

    pub fn after(self, delay: Duration) -> Answer {
        Answer::from(self).after(delay)
    }

    pub fn held_by(self, gate: &Gate) -> Answer {
        Answer::from(self).held_by(gate)
    }

    pub fn drip(self, every: Duration) -> Answer {
        Answer::from(self).drip(every)
    }
}

impl From<StatusAnswer> for Answer {
    fn from(answer: StatusAnswer) -> Self {
        let mut bytes = format!("HTTP/1.1 {} Scripted\r\n", answer.status).into_bytes();
        for (name, value) in &answer.headers {
            bytes.extend_from_slice(format!("{name}: {value}\r\n").as_bytes());
        }
        if answer.status != 204 && answer.status != 304 {
            bytes.extend_from_slice(format!("content-length: {}\r\n", answer.body.len()).as_bytes());
        }
        bytes.extend_from_slice(b"\r\n");
        bytes.extend_from_slice(&answer.body);
        Self::raw(bytes)
    }
}

/// Holds answers back until the test opens it; stays open.
#[derive(Debug, Clone, Default)]
pub struct Gate(CancellationToken);

impl Gate {
    pub fn new() -> Self {
        Self::default()
    }

    pub fn open(&self) {
        self.0.cancel();
    }

    pub(super) async fn passed(&self) {
        self.0.cancelled().await;
    }
}
