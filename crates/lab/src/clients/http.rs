//! A real HTTP server and `curl`.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use crate::error::{Error, Result};
use crate::program::{Background, Transport};
use crate::topology::{Family, Lab};

const PORT: u16 = 8080;
const FILE: &str = "payload.bin";
const LIMIT: Duration = Duration::from_secs(20);

/// A server that offers one file of pseudo-random bytes, over IPv4 and IPv6.
#[derive(Debug)]
pub struct HttpServer {
    _background: Background,
    sha256: String,
}

/// The result of a download.
#[derive(Clone, Debug, PartialEq)]
pub struct Download {
    /// The status code of the answer.
    pub status: u16,
    /// Bytes of the body.
    pub bytes: u64,
    /// True if the body has the SHA-256 of the file.
    pub intact: bool,
    /// The client's port, for finding the connection in a table.
    pub client_port: u16,
}

impl HttpServer {
    /// Starts Python's `http.server` on the lab's server.
    ///
    /// # Errors
    /// Those of [`Background::wait_for`].
    pub fn start(lab: &Lab, bytes: usize) -> Result<Self> {
        let path = lab.server().write_file(FILE, &pseudo_random(bytes))?;
        let sha256 = sha256(&lab.on_server("sha256sum").args([&path]).check()?)?;
        let directory = crate::Namespace::SCRATCH;
        let mut background = lab
            .on_server("python3")
            .args(["-m", "http.server", "--bind", "::", "--directory", directory])
            .args([PORT.to_string()])
            .spawn()?;
        background.wait_for_port(Transport::Tcp, PORT)?;
        Ok(Self { _background: background, sha256 })
    }

    /// Downloads the file to the lab's client with `curl`.
    ///
    /// # Errors
    /// [`Error::Failed`] with curl's message if no answer came.
    pub fn download(&self, lab: &Lab, family: Family) -> Result<Download> {
        self.download_from(lab, lab.server_address(family))
    }

    /// As [`HttpServer::download`], from another address of the server, such as one in
    /// a tunnel.
    ///
    /// # Errors
    /// As [`HttpServer::download`].
    pub fn download_from(&self, lab: &Lab, server: IpAddr) -> Result<Download> {
        self.get(lab, server, &[])
    }

    /// As [`HttpServer::download`], with at most `rate` bytes per second.
    ///
    /// # Errors
    /// As [`HttpServer::download`].
    pub fn download_at_rate(&self, lab: &Lab, family: Family, rate: u32) -> Result<Download> {
        self.get(lab, lab.server_address(family), &["--limit-rate", &rate.to_string()])
    }

    fn get(&self, lab: &Lab, server: IpAddr, options: &[&str]) -> Result<Download> {
        let url = format!("http://{}/{FILE}", SocketAddr::new(server, PORT));
        let path = format!("{}/download", crate::Namespace::SCRATCH);
        let format = "%{http_code} %{size_download} %{local_port}";
        let text = lab
            .on_client("curl")
            .args(["-sS", "--globoff", "--noproxy", "*", "-o", &path, "-w", format, &url])
            .args(options)
            .limit(LIMIT)
            .check()?;
        let mut words = text.split(' ').map(str::parse);
        let mut next = || {
            let word: Option<u64> = words.next().and_then(std::result::Result::ok);
            word.ok_or_else(|| Error::unexpected("curl", "three numbers", &text))
        };
        let (status, bytes, port) = (next()?, next()?, next()?);
        let got = sha256(&lab.on_client("sha256sum").args([&path]).check()?)?;
        Ok(Download {
            status: u16::try_from(status).unwrap_or(0),
            bytes,
            intact: got == self.sha256,
            client_port: u16::try_from(port).unwrap_or(0),
        })
    }
}

/// Bytes without a pattern (xorshift64, Marsaglia 2003), always the same.
pub(super) fn pseudo_random(bytes: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut data = Vec::with_capacity(bytes + 8);
    while data.len() < bytes {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        data.extend_from_slice(&state.to_le_bytes());
    }
    data.truncate(bytes);
    data
}

pub(super) fn sha256(text: &str) -> Result<String> {
    let sum = text.split(' ').next().filter(|sum| sum.len() == 64);
    sum.map(str::to_owned).ok_or_else(|| Error::unexpected("sha256sum", "sum", text))
}
