//! Running `createRuntime` hooks as runc does: the OCI state on standard input, the
//! hook's own environment alone, and any failure is the container's.

use super::cdi::Hook;
use serde_json::Value;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;
use tokio::io::AsyncWriteExt as _;
use tokio::process::Command;

/// Where runc has no limit of its own, a hook that hangs would hang the pod.
const LONGEST: Duration = Duration::from_secs(30);

/// Runs one hook; an error is one sentence in runc's words.
pub(crate) async fn run(
    position: usize,
    hook: &Hook,
    state: &Value,
    bundle: &Path,
) -> Result<(), String> {
    let told = |why: String| format!("error running {} hook #{position}: {why}", hook.name);
    let mut command = Command::new(&hook.path);
    if let Some((name, rest)) = hook.args.split_first() {
        command.arg0(name).args(rest);
    }
    command
        .env_clear()
        .envs(hook.env.iter().filter_map(|pair| pair.split_once('=')))
        .current_dir(bundle)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true);
    let mut child = command
        .spawn()
        .map_err(|error| told(format!("fork/exec {}: {error}", hook.path.display())))?;
    let mut input = child.stdin.take().expect("stdin is piped");
    let text = state.to_string();
    // A hook that does not read its input may still be content.
    let _ = input.write_all(text.as_bytes()).await;
    drop(input);
    let limit = hook.timeout.map_or(LONGEST, Duration::from_secs);
    let output = tokio::time::timeout(limit, child.wait_with_output())
        .await
        .map_err(|_| told(format!("hook ran past its limit of {} s", limit.as_secs())))?
        .map_err(|error| told(error.to_string()))?;
    if output.status.success() {
        return Ok(());
    }
    let code = output.status.code().map_or_else(
        || output.status.to_string(),
        |code| format!("exit status {code}"),
    );
    Err(told(format!(
        "{code}, stdout: {}, stderr: {}",
        String::from_utf8_lossy(&output.stdout).trim(),
        String::from_utf8_lossy(&output.stderr).trim()
    )))
}
