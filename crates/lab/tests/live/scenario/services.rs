//! Programs that answer, or tell when they begin.

use lab::{Background, Namespace, Program, Result};

const ECHO: &str = "
import socketserver, sys, threading
class Stream(socketserver.BaseRequestHandler):
    def handle(self):
        while data := self.request.recv(65536):
            self.request.sendall(data)
class Datagram(socketserver.BaseRequestHandler):
    def handle(self):
        self.request[1].sendto(self.request[0], self.client_address)
class Streams(socketserver.ThreadingTCPServer):
    address_family, allow_reuse_address, daemon_threads, request_queue_size = 10, True, True, 100
class Datagrams(socketserver.UDPServer):
    address_family = 10
end = '::', int(sys.argv[1])
for server in Streams(end, Stream), Datagrams(end, Datagram):
    threading.Thread(target=server.serve_forever).start()
print('ready', flush=True)
";

/// A host that echoes all data to this port of TCP and UDP, over both families.
pub fn echo(host: &Namespace, port: u16) -> Result<Background> {
    ready(host.program("python3").args(["-c", ECHO, &port.to_string()]))
}

const SOURCE_ECHO: &str = "
import socket, sys
s = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
s.bind(('::', int(sys.argv[1])))
print('ready', flush=True)
while True:
    data, source = s.recvfrom(100)
    s.sendto(data + b' ' + source[0].encode() + b' ' + str(source[1]).encode(), source)
";

/// A host that echoes each datagram to this port with the address and the port of its source.
pub fn source_echo(host: &Namespace, port: u16) -> Result<Background> {
    ready(host.program("python3").args(["-c", SOURCE_ECHO, &port.to_string()]))
}

/// The beginning of a script whose arguments are the path of a file and a server of FTP. `session` logs
/// in, and `read` gets the rest of a transfer and returns its length.
pub const FTP_SESSIONS: &str = "
import ftplib, os, socket, sys, time
end, server = sys.argv[1:]
def session(passive):
    ftp = ftplib.FTP(server, timeout=8)
    ftp.login()
    ftp.set_pasv(passive)
    ftp.voidcmd('TYPE I')
    return ftp
def read(ftp, connection):
    length = 0
    while part := connection.recv(65536): length += len(part)
    connection.close()
    ftp.voidresp()
    return length
";

/// Starts a program and waits until it prints that it is ready.
pub fn ready(program: Program) -> Result<Background> {
    let mut program = program.spawn()?;
    program.wait_for_text("ready")?;
    Ok(program)
}
