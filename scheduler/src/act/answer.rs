//! What an answer of the API server means for a write.

use std::time::Duration;

/// For one request.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);

/// What is known after one request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Answer<T> {
    /// Taken.
    Done(T),
    /// Refused, with the server's code and one line.
    Refused(u16, String),
    /// Certainly not taken, and worth another try.
    Busy(String),
    /// Nobody knows whether it was taken.
    Unknown(String),
}

/// Waits for a request, at most [`PATIENCE`].
pub(crate) async fn of<T>(request: impl Future<Output = kube::Result<T>>) -> Answer<T> {
    match tokio::time::timeout(PATIENCE, request).await {
        Ok(Ok(value)) => Answer::Done(value),
        Ok(Err(error)) => judge(&error),
        Err(_) => Answer::Unknown(format!("no answer within {} s", PATIENCE.as_secs())),
    }
}

fn judge<T>(error: &kube::Error) -> Answer<T> {
    match error {
        kube::Error::Api(status) => match status.code {
            429 => Answer::Busy(line(&status.message)),
            500.. => Answer::Unknown(line(&status.message)),
            code => Answer::Refused(code, line(&status.message)),
        },
        other => Answer::Unknown(line(&other.to_string())),
    }
}

/// One line of a text that may have several.
pub(crate) fn line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use kube::core::Status;

    fn api(code: u16) -> kube::Error {
        kube::Error::Api(Box::new(Status {
            code,
            message: "why\nso".into(),
            ..Status::default()
        }))
    }

    #[test]
    fn only_what_was_certainly_not_taken_is_busy() {
        assert_eq!(judge::<()>(&api(429)), Answer::Busy("why so".into()));
        assert_eq!(
            judge::<()>(&api(409)),
            Answer::Refused(409, "why so".into())
        );
        assert_eq!(judge::<()>(&api(500)), Answer::Unknown("why so".into()));
        assert_eq!(judge::<()>(&api(504)), Answer::Unknown("why so".into()));
    }

    #[tokio::test(start_paused = true)]
    async fn silence_is_unknown() {
        let answer = of(std::future::pending::<kube::Result<()>>()).await;
        assert!(matches!(answer, Answer::Unknown(_)));
    }
}
