# Sends packets to ports of an address, and prints what each is answered with, in one line: the
# fields that a host chooses, also in an ICMP error of a router on the way. It runs with: seconds to wait for answers, own address, address,
# ports with commas, kinds of packets with commas. A kind is "udp", or the control bits of a TCP
# segment, such as "SA"; one with a "+" carries data.
import select
import socket
import struct
import sys
import time

wait, own, target = float(sys.argv[1]), sys.argv[2], sys.argv[3]
ports, kinds = [int(port) for port in sys.argv[4].split(',')], sys.argv[5].split(',')
family = socket.AF_INET6 if ':' in target else socket.AF_INET
FLAGS = 'FSRPAU'
SEQUENCE, ACKNOWLEDGMENT = 1_000_000_000, 2_000_000_000
ICMP = {socket.AF_INET: socket.IPPROTO_ICMP, socket.AF_INET6: socket.IPPROTO_ICMPV6}[family]


def packed(address):
    return socket.inet_pton(family, address)


def checksum(protocol, segment):
    pseudo = packed(own) + packed(target) + struct.pack('!II', len(segment), protocol)
    data = pseudo + segment + bytes(len(segment) % 2)
    total = sum(struct.unpack(f'!{len(data) // 2}H', data))
    while total >> 16:
        total = (total & 0xffff) + (total >> 16)
    return (total ^ 0xffff) or 0xffff


def tcp(source, port, kind):
    flags = sum(1 << FLAGS.index(flag) for flag in kind.strip('+-'))
    header = struct.pack('!HHIIBBHHH', source, port, SEQUENCE, ACKNOWLEDGMENT, 5 << 4, flags, 5000, 0, 0)
    segment = header + (b'hello' if '+' in kind else b'')
    return segment[:16] + struct.pack('!H', checksum(6, segment)) + segment[18:]


def udp(source, port):
    datagram = struct.pack('!HHHH', source, port, 13, 0) + b'hello'
    return datagram[:6] + struct.pack('!H', checksum(17, datagram)) + datagram[8:]


# Sockets for sending, and one that sees all that comes in.
senders = {number: socket.socket(family, socket.SOCK_RAW, number) for number in (6, 17)}
ether = 0x86dd if family == socket.AF_INET6 else 0x0800
seen = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(ether))
seen.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)

asked = {}
for place, port in enumerate(ports):
    for number, kind in enumerate(kinds):
        source = 20_000 + 100 * place + number
        asked[source] = (kind, port)
        sender, packet = (17, udp(source, port)) if kind == 'udp' else (6, tcp(source, port, kind))
        senders[sender].sendto(packet, (target, 0))


def read(packet):
    """The port that is answered, and the answer."""
    if family == socket.AF_INET:
        header = (packet[0] & 15) * 4
        protocol, hops, source = packet[9], packet[8], packet[12:16]
        least = 28
    else:
        header, protocol, hops, source, least = 40, packet[6], packet[7], packet[8:24], 48
    body = packet[header:]
    # A router on the way may answer for the address.
    if source != packed(target) and protocol != ICMP:
        return None
    said = f'from {socket.inet_ntop(family, source)} hops {hops} '
    if protocol == 6:
        here, there, sequence, acknowledgment, _, flags, window = struct.unpack('!HHIIBBH', body[:16])
        names = ''.join(name for bit, name in enumerate(FLAGS) if flags >> bit & 1)
        numbers = f'{sequence} {acknowledgment} window {window} length {len(body)}'
        return there, said + f'{names} {numbers}'
    if protocol == 17:
        return struct.unpack('!H', body[2:4])[0], said + f'udp {body[8:13]}'
    if protocol == ICMP and body[0] in (1, 3):
        quote = body[8:]
        inner = quote[header:header + 4]
        return struct.unpack('!H', inner[:2])[0], said + f'icmp {body[0]} {body[1]} quotes {len(quote)}'
    return None


answers, end = {}, time.monotonic() + wait
while len(answers) < len(asked) and time.monotonic() < end:
    if select.select([seen], [], [], max(0, end - time.monotonic()))[0]:
        packet, address = seen.recvfrom(65536)
        if address[2] == socket.PACKET_HOST and (answer := read(packet)) and answer[0] in asked:
            answers.setdefault(answer[0], []).append(answer[1])
for source, (kind, port) in asked.items():
    print(kind, port, ' and '.join(answers.get(source, ['silence'])))
