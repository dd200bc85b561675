"""A phone on the far side of a gateway. It trusts the descriptions that it reads and sends sound to
the addresses in them. It prints its findings.

    far_phone.py answer OWN TRANSPORT
    far_phone.py call OWN TRANSPORT HOST PORT
    far_phone.py registrar OWN udp      confirms one registration, then calls the phone
    far_phone.py register OWN udp HOST PORT     registers its own phone, at port 5062
"""

import re
import socket
import sys
import time

LIMIT_S = 4
SIGNALLING, SOUND, CALLER, CONTACT = 5060, 7000, 5071, 5062
PACKET = bytes([0x80, 0]) + bytes(170)


def bracketed(host):
    return f"[{host}]" if ":" in host else host


class Line:
    """The transport of messages: datagrams, or one TCP connection."""

    def __init__(self, sock, peer=None):
        self.sock, self.peer, self.rest = sock, peer, b""
        sock.settimeout(LIMIT_S)

    def send(self, text):
        if self.peer:
            self.sock.sendto(text.encode(), self.peer)
        else:
            self.sock.sendall(text.encode())

    def read(self):
        if self.sock.type == socket.SOCK_DGRAM:
            data, self.peer = self.sock.recvfrom(65536)
            return data.decode()
        while True:
            head, end, body = self.rest.partition(b"\r\n\r\n")
            length = re.search(rb"(?i)content-length: *(\d+)", head)
            if end and len(body) >= int(length[1]):
                size = int(length[1])
                self.rest = body[size:]
                return (head + end + body[:size]).decode()
            more = self.sock.recv(65536)
            if not more:
                raise EOFError(self.rest)
            self.rest += more


def datagrams(own, port):
    sock = socket.socket(socket.AF_INET6 if ":" in own else socket.AF_INET, socket.SOCK_DGRAM)
    sock.bind((own, port))
    return sock


def field(text, name):
    return re.search(rf"(?im)^{name}: *(.*)\r$", text)[1]


def description(own):
    kind = "IP6" if ":" in own else "IP4"
    lines = ["v=0", f"o=far 1 1 IN {kind} {own}", "s=-", f"c=IN {kind} {own}", "t=0 0"]
    return "".join(f"{line}\r\n" for line in [*lines, f"m=audio {SOUND} RTP/AVP 0"])


def whole(first, fields, body=""):
    lines = [first, *fields, f"Content-Length: {len(body)}", "", body]
    return "\r\n".join(lines)


def answer(request, own, port, body="", contact=None):
    names = ["Via", "From", "To", "Call-ID", "CSeq"]
    fields = [f"{name}: {field(request, name)}" for name in names]
    fields[2] += ";tag=far"
    fields.append(contact or f"Contact: <sip:far@{bracketed(own)}:{port}>")
    return whole("SIP/2.0 200 OK", fields, body)


def ask(method, uri, own, port, transport, number, body="", contact=None):
    host = f"{bracketed(own)}:{port}"
    fields = [
        f"Via: SIP/2.0/{transport.upper()} {host};rport;branch=z9hG4bK{number}{method}",
        f"From: <sip:far@{host}>;tag=far",
        f"To: <{uri}>",
        f"Call-ID: far{port}@example.com",
        f"CSeq: {number} {method}",
        f"Contact: <sip:far@{contact or host}>;expires=60",
        "Max-Forwards: 70",
    ]
    if body:
        fields.append("Content-Type: application/sdp")
    return whole(f"{method} {uri} SIP/2.0", fields, body)


def check_names(text, reader):
    """Prints a complaint if the text names an address that this side can not reach."""
    # A Call-ID is no address.
    said = re.sub(r"(?im)^call-id:.*$", "", text)
    hosts = set(re.findall(r"192\.0\.2\.\d+|2001:db8:1::[0-9a-f]+", said))
    if hosts:
        print("names", sorted(hosts), "for", reader, end=" ")
        print(text, file=sys.stderr)
    length = re.search(r"(?i)content-length: *(\d+)", text)
    body = text.partition("\r\n\r\n")[2]
    if length and int(length[1]) != len(body):
        print("says", length[1], "bytes and has", len(body), end=" ")


def hear(own, text):
    """Sends sound to the address in a description until it comes back from there."""
    host = re.search(r"(?m)^c=IN IP[46] (\S+)", text)[1]
    place = (host, int(re.search(r"(?m)^m=audio (\d+)", text)[1]))
    sound = datagrams(own, SOUND)
    sound.settimeout(0.05)
    until = time.monotonic() + LIMIT_S / 2
    while time.monotonic() < until:
        sound.sendto(PACKET, place)
        try:
            data, source = sound.recvfrom(2000)
        except TimeoutError:
            continue
        if data == PACKET and source[:2] == place:
            print("heard", end="", flush=True)
            break
    sound.close()


def answering(own, transport):
    if transport == "udp":
        line = Line(datagrams(own, SIGNALLING))
        print("ready", flush=True)
    else:
        listener = socket.create_server(
            (own, SIGNALLING), family=socket.AF_INET6 if ":" in own else socket.AF_INET
        )
        listener.settimeout(LIMIT_S)
        print("ready", flush=True)
        connection, peer = listener.accept()
        line = Line(connection)
    offer = None
    while True:
        text = line.read()
        method = text.split(" ", 1)[0]
        # Over TCP a caller names the port where it listens, and the gateway does not translate that
        # port.
        check_names(text if line.peer else text.split("\r\n\r\n")[1], own)
        if method == "INVITE":
            offer = text if offer is None else offer
            line.send(answer(text, own, SIGNALLING, description(own)))
        elif method == "ACK" and offer:
            hear(own, offer)
            offer = None
        elif method == "BYE":
            line.send(answer(text, own, SIGNALLING))
            return


def calling(own, transport, host, port, own_port=CALLER):
    if transport == "udp":
        line = Line(datagrams(own, own_port), (host, port))
    else:
        line = Line(socket.create_connection((host, port), LIMIT_S))
        own_port = line.sock.getsockname()[1]
    place, is_open = line.peer, False
    uri = f"sip:near@{bracketed(host)}:{port}"
    line.send(ask("INVITE", uri, own, own_port, transport, 1, description(own)))
    while True:
        text = line.read()
        check_names(text, own)
        if place:
            line.peer = place
        if not text.startswith("SIP/2.0 200"):
            continue
        if "INVITE" in field(text, "CSeq"):
            line.send(ask("ACK", uri, own, own_port, transport, 1))
            if is_open:
                continue
            is_open = True
            hear(own, text)
            line.send(ask("BYE", uri, own, own_port, transport, 2))
        else:
            return


def registrar(own):
    line = Line(datagrams(own, SIGNALLING))
    print("ready", flush=True)
    text = line.read()
    check_names(text, own)
    contact = f"Contact: {field(text, 'Contact')}"
    line.send(answer(text, own, SIGNALLING, contact=contact))
    host, port = re.search(r"@\[?([0-9a-f.:]+?)\]?:(\d+)>", contact).groups()
    time.sleep(0.2)
    calling(own, "udp", host, int(port))


def registering(own, host, port):
    line = Line(datagrams(own, SIGNALLING), (host, port))
    uri = f"sip:{bracketed(host)}"
    contact = f"{bracketed(own)}:{CONTACT}"
    line.send(ask("REGISTER", uri, own, SIGNALLING, "udp", 1, contact=contact))
    text = line.read()
    print("registered" if f"@{contact}>" in text else text, end="")


def main():
    role, own, transport, *rest = sys.argv[1:]
    target = [rest[0], int(rest[1])] if rest else []
    try:
        match role:
            case "answer":
                answering(own, transport)
            case "call":
                calling(own, transport, *target)
            case "registrar":
                registrar(own)
            case "register":
                registering(own, *target)
    except (TimeoutError, OSError) as error:
        print(" ended with", repr(error), end="")


main()
