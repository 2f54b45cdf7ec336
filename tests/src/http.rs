//! One request over plain HTTP, for metrics, health and answers on loopback.
//!
//! In: an address and a path, and what is posted. Out: the body, or an error for any status but
//! 200. Must never be used for anything that needs TLS.

use anyhow::{Context, Result, bail};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Gets a page.
pub async fn get(address: &str, path: &str) -> Result<String> {
    // 1.0: the answer ends with the connection, and is not chunked.
    ask(
        address,
        path,
        format!("GET {path} HTTP/1.0\r\nHost: {address}\r\n\r\n"),
    )
    .await
}

/// Posts JSON and gets the answer.
pub async fn post(address: &str, path: &str, json: &str) -> Result<String> {
    let length = json.len();
    let request = format!(
        "POST {path} HTTP/1.0\r\nHost: {address}\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{json}"
    );
    ask(address, path, request).await
}

/// The length of a page that may be too large to keep, in bytes.
pub async fn length(address: &str, path: &str) -> Result<usize> {
    let mut stream = TcpStream::connect(address)
        .await
        .with_context(|| address.to_owned())?;
    let request = format!("GET {path} HTTP/1.0\r\nHost: {address}\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut piece = vec![0; 64 << 10];
    let mut length = stream.read(&mut piece).await?;
    let status = String::from_utf8_lossy(piece.get(..length).unwrap_or_default());
    let status = status.lines().next().unwrap_or_default();
    if !status.contains(" 200 ") {
        bail!("{address}{path}: {status}");
    }
    loop {
        match stream.read(&mut piece).await? {
            0 => return Ok(length),
            more => length += more,
        }
    }
}

async fn ask(address: &str, path: &str, request: String) -> Result<String> {
    let mut stream = TcpStream::connect(address)
        .await
        .with_context(|| address.to_owned())?;
    stream.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    let (head, body) = answer.split_once("\r\n\r\n").context("no HTTP answer")?;
    let status = head.lines().next().unwrap_or_default();
    if !status.contains(" 200 ") {
        bail!("{address}{path}: {status}");
    }
    Ok(body.to_owned())
}
