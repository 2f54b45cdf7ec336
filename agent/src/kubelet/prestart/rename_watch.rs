//! The agent's own sight of a file that it renamed.

use futures::StreamExt as _;
use inotify::{Inotify, WatchMask};
use std::path::Path;
use std::time::Duration;

/// It comes within microseconds of a rename, or inotify is not available.
const ECHO_PATIENCE: Duration = Duration::from_millis(500);

/// Our own watch on the CDI directory: when it has seen the rename, so has the runtime's
/// kernel queue. `None` inside: no inotify to be had, the settling time must do.
pub(super) struct RenameWatch(Option<inotify::EventStream<[u8; 4096]>>);

impl RenameWatch {
    pub(super) fn watch(dir: &Path) -> Self {
        let stream = Inotify::init().and_then(|inotify| {
            inotify.watches().add(dir, WatchMask::MOVED_TO)?;
            inotify.into_event_stream([0; 4096])
        });
        if let Err(error) = &stream {
            tracing::debug!(%error, "no inotify on the CDI directory");
        }
        Self(stream.ok())
    }

    pub(super) async fn heard(&mut self, name: &std::ffi::OsStr) {
        let Some(stream) = &mut self.0 else { return };
        let mut until = std::pin::pin!(tokio::time::sleep(ECHO_PATIENCE));
        loop {
            tokio::select! {
                event = stream.next() => match event {
                    Some(Ok(event)) if event.name.as_deref() == Some(name) => return,
                    Some(Ok(_)) => {}
                    Some(Err(_)) | None => return,
                },
                () = &mut until => return,
            }
        }
    }
}
