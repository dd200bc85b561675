# Sends and receives packets of tunnels through raw sockets. The inner packet is an IP packet that
# this script builds; no host unpacks it.
#
#   hear: prints each packet of a tunnel with its source and its content, and each error about an
#         unknown protocol, until a content ends with "end".
#   say FROM KIND TO FLOWS WHAT: sends this many packets, each with another flow inside.
import select, socket, struct, sys

V4, V6 = socket.AF_INET, socket.AF_INET6
# Name: outer family, protocol, header in front of the inner packet, inner family.
KINDS = {
    'ipip': (V4, 4, b'', V4),
    '6in4': (V4, 41, b'', V6),
    'gre': (V4, 47, b'\0\0\x08\0', V4),
    'gre-key': (V4, 47, b'\x20\0\x08\0\0\0\0\x07', V4),
    'gre-number': (V4, 47, b'\x10\0\x08\0\0\0\0\x01', V4),
    '4in6': (V6, 4, b'', V4),
    '6in6': (V6, 41, b'', V6),
    'gre6': (V6, 47, b'\0\0\x86\xdd', V6),
}


def total(data):
    data += b'\0' * (len(data) % 2)
    value = sum(struct.unpack(f'!{len(data) // 2}H', data))
    while value > 0xffff:
        value = (value & 0xffff) + (value >> 16)
    return ~value & 0xffff


def inner(family, flow, text):
    # A datagram between allowed addresses, to a port that the rules open to every host.
    data = struct.pack('!4H', 5000 + flow, 53, 8 + len(text), 0) + text
    if family == V6:
        ends = socket.inet_pton(V6, '2001:db8:2::1') + socket.inet_pton(V6, '2001:db8:1::1')
        return struct.pack('!IHBB', 6 << 28, len(data), 17, 64) + ends + data
    ends = socket.inet_aton('198.51.100.2') + socket.inet_aton('192.0.2.1')
    header = struct.pack('!BBHHHBBH', 0x45, 0, 20 + len(data), flow, 0, 64, 17, 0) + ends
    return header[:10] + struct.pack('!H', total(header)) + header[12:] + data


def say(source, kind, to, flows, what):
    family, protocol, header, inside = KINDS[kind]
    with socket.socket(family, socket.SOCK_RAW, protocol) as s:
        if source != '-':
            s.bind((source, 0))
        for flow in range(int(flows)):
            text = f'{kind} {flow} {what}'.encode()
            s.sendto(header + inner(inside, flow, text), (to, 0))


def hear():
    sockets = {}
    for family in (V4, V6):
        for protocol in (4, 41, 47, 1 if family == V4 else 58):
            s = socket.socket(family, socket.SOCK_RAW, protocol)
            s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
            sockets[s] = protocol
    print('ready', flush=True)
    while True:
        for s in select.select(list(sockets), [], [])[0]:
            data, source = s.recvfrom(4096)
            if s.family == V4:
                data = data[4 * (data[0] & 15):]
            unknown = {1: (3, 2), 58: (4, 1)}.get(sockets[s])
            if unknown:
                if (data[0], data[1]) == unknown:
                    print(source[0], 'does not know a protocol', flush=True)
                continue
            print(sockets[s], source[0], data.hex(), flush=True)
            if data.endswith(b'end'):
                return


if sys.argv[1] == 'hear':
    hear()
else:
    for words in sys.argv[2:]:
        say(*words.split(','))
