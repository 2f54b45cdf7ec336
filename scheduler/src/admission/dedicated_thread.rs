//! A part on a thread and a runtime of its own. A decision keeps a thread of the main runtime for
//! as long as it takes, and with it whatever was to run there next: the API server waits five
//! seconds for an answer about a pod.

use std::io;
use std::thread;
use tokio::sync::oneshot;

/// What the part ends with.
///
/// # Errors
/// As the part; or there is no thread for it, or it panicked.
pub(super) async fn run(
    name: &'static str,
    part: impl Future<Output = io::Result<()>> + Send + 'static,
) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let (to, ended) = oneshot::channel();
    let log = tracing::dispatcher::get_default(Clone::clone);
    thread::Builder::new()
        .name(name.to_owned())
        .spawn(move || {
            let _log = tracing::dispatcher::set_default(&log);
            // A caller that no longer waits for it has stopped it.
            let _ = to.send(runtime.block_on(part));
        })?;
    match ended.await {
        Ok(ended) => ended,
        Err(_) => Err(io::Error::other("its thread panicked")),
    }
}
