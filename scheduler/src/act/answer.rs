//! What an answer of the API server means for a write, and how an answer is had where none
//! came.

use super::permit::Permit;
use crate::leader::NotLeading;
use scheduler_core::OutcomeResult;
use std::time::Duration;
use tokio::time::Instant;

/// For one request.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);
/// A write without an answer may be carried out so long after it was sent: the API server
/// gives a request 60 s (`--request-timeout`), and has some more to end it.
pub(crate) const LANDING: Duration = Duration::from_secs(70);
/// Between two tries: at first, doubled each time, and at most.
const PAUSE: Duration = Duration::from_millis(200);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// What is known after one request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Answer<T> {
    /// Taken.
    Done(T),
    /// Refused, with the server's code and one line.
    Refused(u16, String),
    /// Certainly not taken, and worth another try.
    Busy(String),
    /// It is unknown whether it was carried out.
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
            500.. if is_of_admission(&status.message) => {
                Answer::Refused(status.code, line(&status.message))
            }
            500.. => Answer::Unknown(line(&status.message)),
            code => Answer::Refused(code, line(&status.message)),
        },
        kube::Error::Service(source)
            if source.downcast_ref::<NotLeading>() == Some(&NotLeading::NotSent) =>
        {
            Answer::Busy(line(&source.to_string()))
        }
        other => Answer::Unknown(line(&other.to_string())),
    }
}

/// An error of a webhook that reviews the request. The API server asks these before it stores
/// anything (`k8s.io/apiserver/pkg/admission/plugin/webhook/errors`), so that such a write was
/// certainly not taken.
fn is_of_admission(message: &str) -> bool {
    let message = message
        .strip_prefix("Internal error occurred: ")
        .unwrap_or(message);
    message.starts_with("failed calling webhook ") || message.starts_with("admission webhook ")
}

/// What a look at the object says of a write.
pub(super) enum WriteState {
    /// The write was taken.
    Taken,
    /// It never will be.
    Never(OutcomeResult),
    /// It was not taken yet.
    NotYet,
}

/// Writes until the result is known. That a write may have been carried out is no result: the
/// same write is sent again, and `look` asks what became of it, until one of both says so. A
/// refusal ends it only when no earlier try can be carried out any more. Writes must be such
/// that the same one twice does no harm.
///
/// `busy` tries may find the server too busy where none is unknown. The permit is given back
/// between two tries.
pub(super) async fn written<T, W, L>(
    permit: &mut Permit,
    busy: u32,
    mut write: impl FnMut() -> W,
    mut look: impl FnMut() -> L,
) -> OutcomeResult
where
    W: Future<Output = kube::Result<T>>,
    L: Future<Output = Option<WriteState>>,
{
    let mut pause = PAUSE;
    let mut busy_left = busy;
    let mut unknown: Option<Instant> = None;
    loop {
        let sent = Instant::now();
        let refusal = match of(write()).await {
            Answer::Done(_) => return OutcomeResult::Confirmed,
            Answer::Busy(why) => {
                busy_left = busy_left.saturating_sub(1);
                if busy_left == 0 && unknown.is_none() {
                    return refused(why);
                }
                None
            }
            // 404, 409: what is there says whether it was this write that came first.
            Answer::Refused(code, why) => {
                if !matches!(code, 404 | 409) && unknown.is_none() {
                    return refused(why);
                }
                Some(why)
            }
            Answer::Unknown(why) => {
                tracing::info!(
                    why,
                    "no answer to a write: it is looked at what became of it"
                );
                unknown = Some(sent);
                None
            }
        };
        if refusal.is_some() || unknown.is_some() {
            let may_land = unknown.is_some_and(|sent| sent.elapsed() < LANDING);
            match (look().await, refusal) {
                (Some(WriteState::Taken), _) => return OutcomeResult::Confirmed,
                (Some(WriteState::Never(result)), _) => return result,
                (Some(WriteState::NotYet), Some(why)) if !may_land => return refused(why),
                _ => {}
            }
        }
        permit.pause(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// Reads until there is an answer: what was found, or why it is not to be read. The permit is given
/// back between two tries.
pub(super) async fn read<T, R>(
    permit: &mut Permit,
    mut request: impl FnMut() -> R,
) -> Result<T, String>
where
    R: Future<Output = kube::Result<T>>,
{
    let mut pause = PAUSE;
    loop {
        match of(request()).await {
            Answer::Done(found) => return Ok(found),
            Answer::Refused(_, why) => return Err(why),
            Answer::Busy(why) | Answer::Unknown(why) => {
                tracing::debug!(why, "read again");
            }
        }
        permit.pause(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// A refusal after which another try may help.
pub(super) fn refused(reason: impl Into<std::sync::Arc<str>>) -> OutcomeResult {
    OutcomeResult::Refused {
        reason: reason.into(),
        retryable: true,
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
    use std::sync::Arc;
    use tokio::sync::Semaphore;

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

    #[test]
    fn an_error_of_a_webhook_is_a_refusal() {
        for message in [
            "Internal error occurred: failed calling webhook \"a.b\": failed to call webhook: Post",
            "failed calling webhook \"a.b\": x",
            "admission webhook \"a.b\" denied the request: no",
        ] {
            let error = kube::Error::Api(Box::new(Status {
                code: 500,
                message: message.into(),
                ..Status::default()
            }));
            assert_eq!(judge::<()>(&error), Answer::Refused(500, message.into()));
        }
        // A conversion webhook can fail on the answer, when the object is stored.
        let error = kube::Error::Api(Box::new(Status {
            code: 500,
            message: "conversion webhook for a/v1 failed: x".into(),
            ..Status::default()
        }));
        assert!(matches!(judge::<()>(&error), Answer::Unknown(_)));
    }

    /// What [`written`] comes to, after how long, when writes and looks answer so in turn and
    /// the last answer is given again and again.
    async fn end(writes: &[Option<u16>], looks: &[Option<bool>]) -> (OutcomeResult, Duration) {
        let begin = Instant::now();
        let (mut wrote, mut looked) = (0, 0);
        let write = || {
            let code = writes[wrote.min(writes.len() - 1)];
            wrote += 1;
            std::future::ready(match code {
                None => Ok(()),
                Some(code) => Err(api(code)),
            })
        };
        let look = || {
            let look = looks[looked.min(looks.len() - 1)];
            looked += 1;
            std::future::ready(look.map(|taken| {
                if taken {
                    WriteState::Taken
                } else {
                    WriteState::NotYet
                }
            }))
        };
        let mut permit = Permit::acquire(&Arc::new(Semaphore::new(1))).await;
        let result = written(&mut permit, 4, write, look).await;
        (result, begin.elapsed())
    }

    #[tokio::test(start_paused = true)]
    async fn unknown_is_no_outcome() {
        let confirmed = OutcomeResult::Confirmed;
        // Carried out, though the answer comes late.
        let (result, _) = end(&[Some(500)], &[None, None, None, Some(true)]).await;
        assert_eq!(result, confirmed);
        // Not taken, and written again.
        let (result, _) = end(&[Some(500), Some(500), None], &[None, Some(false)]).await;
        assert_eq!(result, confirmed);
        // A refusal of a later try says nothing of the first, until that one cannot come
        // any more.
        let (result, after) = end(&[Some(504), Some(403)], &[Some(false)]).await;
        assert_eq!(result, refused("why so"));
        assert!(after >= LANDING, "{after:?}");
        // A busy server is asked again about a write that may have been carried out.
        let (result, _) = end(
            &[Some(500), Some(429), Some(429), Some(429), Some(429), None],
            &[Some(false)],
        )
        .await;
        assert_eq!(result, confirmed);
        // Where all was answered, a refusal is one at once.
        let (result, after) = end(&[Some(403)], &[Some(false)]).await;
        assert_eq!((result, after), (refused("why so"), Duration::ZERO));
        let (result, after) = end(&[Some(409)], &[Some(false)]).await;
        assert_eq!((result, after), (refused("why so"), Duration::ZERO));
        let (result, _) = end(&[Some(409)], &[None, Some(true)]).await;
        assert_eq!(result, confirmed);
    }

    #[tokio::test(start_paused = true)]
    async fn silence_is_unknown() {
        let answer = of(std::future::pending::<kube::Result<()>>()).await;
        assert!(matches!(answer, Answer::Unknown(_)));
    }
}
