//! The way to the driver.
//!
//! Owns idle connections and the init count. In: a request line. Out: the
//! answer's fields. The driver's root is the nearest folder above this library
//! that has `run/nvidia-persistenced/socket`, else that of `SIM_NVML_SOCKET`.
//! Must never: take the caller down; whatever goes wrong is a return code.

use std::cell::Cell;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::abi::{DRIVER_NOT_LOADED, Return, UNINITIALIZED, UNKNOWN};

const SOCKET: &str = "run/nvidia-persistenced/socket";
/// The driver answers with this line to a call that hangs; the final answer follows when the fault
/// is lifted.
const HANGS: &str = "hangs";
const PATIENCE: Duration = Duration::from_secs(10);

struct Link {
    root: PathBuf,
    users: usize,
    idle: Vec<Connection>,
}

struct Connection {
    reader: BufReader<UnixStream>,
    // A forked child must not use its parent's connection.
    pid: u32,
}

static LINK: Mutex<Option<Link>> = Mutex::new(None);

thread_local! {
    /// The name of the call that this thread makes, for which the driver may have a fault.
    static CALL: Cell<&'static str> = const { Cell::new("") };
}

/// Notes that a call of the library begins; all further requests of this thread carry its name.
pub(crate) fn enters(call: &'static str) {
    CALL.set(call);
}

fn link() -> MutexGuard<'static, Option<Link>> {
    LINK.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The fields of an `ok` line.
pub(crate) struct Answer(Vec<(String, String)>);

impl Answer {
    /// A field's text, empty where it is absent.
    pub(crate) fn text(&self, key: &str) -> String {
        self.raw(key).map(decode).unwrap_or_default()
    }

    /// A number; absent or malformed is `UNKNOWN`.
    pub(crate) fn number<T: std::str::FromStr>(&self, key: &str) -> Result<T, Return> {
        self.raw(key)
            .and_then(|text| text.parse().ok())
            .ok_or(UNKNOWN)
    }

    /// True for `1`.
    pub(crate) fn flag(&self, key: &str) -> bool {
        self.raw(key) == Some("1")
    }

    /// A table's rows.
    pub(crate) fn rows(&self, key: &str) -> Vec<Vec<String>> {
        match self.raw(key) {
            None | Some("") => Vec::new(),
            Some(text) => text
                .split(',')
                .map(|row| row.split('|').map(decode).collect())
                .collect(),
        }
    }

    fn raw(&self, key: &str) -> Option<&str> {
        self.0
            .iter()
            .find(|(k, _)| k == key)
            .map(|(_, v)| v.as_str())
    }
}

/// `nvmlInit`: finds the driver and talks to it once.
pub(crate) fn open() -> Result<(), Return> {
    let root = find_root().ok_or(DRIVER_NOT_LOADED)?;
    let mut link = link();
    if let Some(link) = link.as_mut() {
        link.users += 1;
        return Ok(());
    }
    if !root.join("dev/nvidiactl").exists() {
        return Err(DRIVER_NOT_LOADED);
    }
    let mut connection = Connection::open(&root).map_err(|_| DRIVER_NOT_LOADED)?;
    connection
        .ask("machine", PATIENCE)
        .map_err(|_| DRIVER_NOT_LOADED)?
        .map_err(|_| DRIVER_NOT_LOADED)?;
    *link = Some(Link {
        root,
        users: 1,
        idle: vec![connection],
    });
    Ok(())
}

/// `nvmlShutdown`.
pub(crate) fn close() -> Result<(), Return> {
    // The answer does not matter: `nvmlShutdown` succeeds even if the driver is gone.
    let _ = ask("machine");
    let mut link = link();
    let open = link.as_mut().ok_or(UNINITIALIZED)?;
    open.users -= 1;
    if open.users == 0 {
        *link = None;
    }
    Ok(())
}

/// The driver root in use.
pub(crate) fn root() -> Result<PathBuf, Return> {
    link().as_ref().map(|l| l.root.clone()).ok_or(UNINITIALIZED)
}

/// Asks the driver.
pub(crate) fn ask(request: &str) -> Result<Answer, Return> {
    ask_for(request, PATIENCE)
}

/// Asks, and waits at most this long.
pub(crate) fn ask_for(request: &str, patience: Duration) -> Result<Answer, Return> {
    let (root, kept) = {
        let mut link = link();
        let link = link.as_mut().ok_or(UNINITIALIZED)?;
        let pid = std::process::id();
        link.idle.retain(|c| c.pid == pid);
        (link.root.clone(), link.idle.pop())
    };
    // A kept connection may be one to a driver that has been restarted since.
    if let Some(mut connection) = kept
        && let Ok(answer) = connection.ask(request, patience)
    {
        keep(connection);
        return answer;
    }
    let mut connection = Connection::open(&root).map_err(|_| UNKNOWN)?;
    let answer = connection.ask(request, patience).map_err(|_| UNKNOWN)?;
    keep(connection);
    answer
}

fn keep(connection: Connection) {
    if let Some(link) = link().as_mut()
        && link.idle.len() < 8
    {
        link.idle.push(connection);
    }
}

impl Connection {
    fn line(&mut self) -> std::io::Result<String> {
        let mut line = String::new();
        if self.reader.read_line(&mut line)? == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        Ok(line)
    }

    fn open(root: &Path) -> std::io::Result<Self> {
        Ok(Self {
            reader: BufReader::new(connect(&root.join(SOCKET))?),
            pid: std::process::id(),
        })
    }

    /// The outer error is the connection's, the inner one the driver's.
    fn ask(
        &mut self,
        request: &str,
        patience: Duration,
    ) -> std::io::Result<Result<Answer, Return>> {
        self.reader.get_ref().set_read_timeout(Some(patience))?;
        self.reader
            .get_mut()
            .write_all(format!("{request} call={}\n", CALL.get()).as_bytes())?;
        let mut line = self.line()?;
        if line.trim_end() == HANGS {
            self.reader.get_ref().set_read_timeout(None)?;
            line = self.line()?;
        }
        let mut words = line.split_ascii_whitespace();
        let verb = words.next().unwrap_or_default();
        let fields = words
            .filter_map(|w| w.split_once('='))
            .map(|(k, v)| (k.to_owned(), v.to_owned()))
            .collect();
        let answer = Answer(fields);
        if verb == "ok" {
            return Ok(Ok(answer));
        }
        // Codes of CUDA's are none of NVML's business.
        let code = if answer.text("name").starts_with("NVML_") {
            answer.number("code").unwrap_or(UNKNOWN)
        } else {
            UNKNOWN
        };
        Ok(Err(code))
    }
}

/// Connects, however long the path is: a socket's address holds 107 bytes, so a
/// longer one goes by way of its folder's descriptor.
fn connect(socket: &Path) -> std::io::Result<UnixStream> {
    const O_PATH: i32 = 0o10_000_000;
    match (socket.parent(), socket.file_name()) {
        (Some(folder), Some(name)) if socket.as_os_str().len() > 107 => {
            let folder = std::fs::OpenOptions::new()
                .read(true)
                .custom_flags(O_PATH)
                .open(folder)?;
            let short = PathBuf::from(format!("/proc/self/fd/{}", folder.as_raw_fd())).join(name);
            UnixStream::connect(short)
        }
        _ => UnixStream::connect(socket),
    }
}

fn decode(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let escaped = (bytes[at] == b'%')
            .then(|| text.get(at + 1..at + 3))
            .flatten()
            .and_then(|hex| u8::from_str_radix(hex, 16).ok());
        out.push(escaped.unwrap_or(bytes[at]));
        at += if escaped.is_some() { 3 } else { 1 };
    }
    String::from_utf8_lossy(&out).into_owned()
}

/// Percent-encodes a value for a request line.
pub(crate) fn encode(text: &str) -> String {
    use std::fmt::Write as _;
    let mut out = String::new();
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-_.:".contains(&byte) {
            out.push(char::from(byte));
        } else {
            let _ = write!(out, "%{byte:02X}");
        }
    }
    out
}

fn find_root() -> Option<PathBuf> {
    let from_library = own_path().and_then(|path| {
        let path = std::path::absolute(path).ok()?;
        path.ancestors()
            .skip(1)
            .find(|folder| folder.join(SOCKET).exists())
            .map(Path::to_owned)
    });
    from_library.or_else(|| {
        let socket = PathBuf::from(std::env::var_os("SIM_NVML_SOCKET")?);
        // <root>/run/nvidia-persistenced/socket
        socket.ancestors().nth(3).map(Path::to_owned)
    })
}

#[repr(C)]
struct DlInfo {
    file_name: *const c_char,
    file_base: *mut c_void,
    symbol_name: *const c_char,
    symbol_address: *mut c_void,
}

unsafe extern "C" {
    fn dladdr(address: *const c_void, info: *mut DlInfo) -> c_int;
}

/// Where the loader found this library.
fn own_path() -> Option<PathBuf> {
    static ANCHOR: u8 = 0;
    let mut info = DlInfo {
        file_name: std::ptr::null(),
        file_base: std::ptr::null_mut(),
        symbol_name: std::ptr::null(),
        symbol_address: std::ptr::null_mut(),
    };
    // SAFETY: `dladdr` of libc takes any address and fills the struct, whose
    // layout is `Dl_info`; both outlive the call.
    let found = unsafe { dladdr(std::ptr::from_ref(&ANCHOR).cast(), &raw mut info) };
    if found == 0 || info.file_name.is_null() {
        return None;
    }
    // SAFETY: on success the name is a zero-terminated string of the loader's,
    // which lives as long as this library is loaded.
    let name = unsafe { CStr::from_ptr(info.file_name) };
    Some(PathBuf::from(std::ffi::OsStr::from_bytes(name.to_bytes())))
}
