//! Real servers of protocols that agree on a second connection, and `curl`.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use super::http::{pseudo_random, sha256};
use crate::error::Result;
use crate::program::{Background, Program, Transport};
use crate::topology::{Family, Lab, Side};

const FILE: &str = "payload.bin";
/// Time limit of a transfer. A transfer that hangs is one that was refused.
const LIMIT: Duration = Duration::from_secs(4);

/// The server has a thread for each client. If one thread serves several clients on a busy machine,
/// pyftpdlib 1.5.7 hangs in one of some hundred transfers, over loopback too.
const FTP_SERVER: &str = "
import sys
from pyftpdlib.authorizers import DummyAuthorizer
from pyftpdlib.handlers import FTPHandler
from pyftpdlib.servers import ThreadedFTPServer
FTPHandler.authorizer = DummyAuthorizer()
FTPHandler.authorizer.add_anonymous(sys.argv[2])
ThreadedFTPServer((sys.argv[1], 21), FTPHandler).serve_forever()
";

/// Protocols that transfer files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileProtocol {
    /// FTP by Python's pyftpdlib.
    Ftp,
    /// TFTP by `dnsmasq`.
    Tftp,
}

/// Debian's Python, which has the package of the FTP server.
pub const PYTHON: &str = "/usr/bin/python3";

/// Starts an FTP server at an address, which offers the files in [`crate::Namespace::SCRATCH`].
/// `python` is [`PYTHON`] in the server's namespace.
///
/// # Errors
/// Those of [`Background::wait_for`]; [`crate::Error::Unavailable`] if it is not installed.
pub fn ftp_server(python: Program, address: &str) -> Result<Background> {
    let installed = python.clone().args(["-c", "import pyftpdlib"]).run()?;
    if installed.code != Some(0) {
        let why = "no pyftpdlib: install the package python3-pyftpdlib".to_owned();
        return Err(crate::Error::Unavailable { why });
    }
    let directory = crate::Namespace::SCRATCH;
    let mut background = python.args(["-c", FTP_SERVER, address, directory]).spawn()?;
    background.wait_for_port(Transport::Tcp, 21)?;
    Ok(background)
}

/// A server that offers one file of pseudo-random bytes.
#[derive(Debug)]
pub struct FileServer {
    _background: Background,
    protocol: FileProtocol,
    family: Family,
    side: Side,
    sha256: String,
}

impl FileServer {
    /// Starts the server on the lab's server, at its assigned port.
    ///
    /// # Errors
    /// Those of [`Background::wait_for`]; [`crate::Error::Unavailable`] if it is not
    /// installed.
    pub fn start(lab: &Lab, protocol: FileProtocol, family: Family, bytes: usize) -> Result<Self> {
        Self::start_at(lab, Side::Server, protocol, family, bytes)
    }

    /// Starts the server on either of the lab's end points.
    ///
    /// # Errors
    /// Those of [`Self::start`].
    pub fn start_at(
        lab: &Lab,
        side: Side,
        protocol: FileProtocol,
        family: Family,
        bytes: usize,
    ) -> Result<Self> {
        let (host, address) = match side {
            Side::Client => (lab.client(), lab.client_address(family)),
            Side::Server => (lab.server(), lab.server_address(family)),
        };
        let path = host.write_file(FILE, &pseudo_random(bytes))?;
        let sum = sha256(&on(lab, side, "sha256sum").args([&path]).check()?)?;
        let directory = crate::Namespace::SCRATCH;
        let background = match protocol {
            FileProtocol::Ftp => ftp_server(on(lab, side, PYTHON), &address.to_string())?,
            FileProtocol::Tftp => {
                let root = format!("--tftp-root={directory}");
                let listen = format!("--listen-address={address}");
                // As for names: `dnsmasq` keeps its user, and offers no names here.
                let options = ["--no-daemon", "--conf-file=/dev/null", "--pid-file", "--port=0"];
                let program = on(lab, side, "dnsmasq").args(options).args(["--enable-tftp"]);
                let mut background = program.args([root, listen]).spawn()?;
                background.wait_for_port(Transport::Udp, 69)?;
                background
            }
        };
        Ok(Self { _background: background, protocol, family, side, sha256: sum })
    }

    /// Downloads the file to the lab's client with `curl` and its `options`. False if that did not
    /// end in time.
    ///
    /// # Errors
    /// [`crate::Error::Unexpected`] if the file differs.
    pub fn download(&self, lab: &Lab, options: &[&str]) -> Result<bool> {
        self.download_from(lab, lab.server_address(self.family), options)
    }

    /// Downloads the file to the end point without the server, which reaches the server by
    /// `address`.
    ///
    /// # Errors
    /// Those of [`Self::download`].
    pub fn download_from(&self, lab: &Lab, address: IpAddr, options: &[&str]) -> Result<bool> {
        let scheme = match self.protocol {
            FileProtocol::Ftp => "ftp",
            FileProtocol::Tftp => "tftp",
        };
        let side = match self.side {
            Side::Client => Side::Server,
            Side::Server => Side::Client,
        };
        let host = SocketAddr::new(address, 0).to_string();
        let host = host.trim_end_matches(":0");
        let path = format!("{}/download", crate::Namespace::SCRATCH);
        let limit = LIMIT.as_secs().to_string();
        let got = on(lab, side, "curl")
            .args(["-sS", "--globoff", "--noproxy", "*", "--max-time", &limit, "-o", &path])
            .args(options)
            .args([format!("{scheme}://{host}/{FILE}")])
            .run()?;
        if got.code != Some(0) {
            return Ok(false);
        }
        let sum = sha256(&on(lab, side, "sha256sum").args([&path]).check()?)?;
        if sum == self.sha256 {
            return Ok(true);
        }
        Err(crate::Error::unexpected("curl", "file with the server's bytes", &got.stderr))
    }
}

fn on(lab: &Lab, side: Side, program: &str) -> Program {
    match side {
        Side::Client => lab.on_client(program),
        Side::Server => lab.on_server(program),
    }
}
