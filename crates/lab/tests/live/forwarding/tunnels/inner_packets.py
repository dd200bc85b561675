"""Serves TCP at some ports, asks at some (it prints one letter for each, `y` for an answer), or is
one end of a tunnel. That end carries packets between the device `tunnel` and the other end, in IPIP
or GRE, so that the tunnels need no kernel module."""
import fcntl
import os
import select
import socket
import struct
import sys
import threading

HEADERS = {'ipip': (4, b''), 'gre': (47, b'\0\0\x08\0')}

def serve(port):
    s = socket.socket()
    s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    s.bind(('', port))
    s.listen()
    while True:
        peer, _ = s.accept()
        peer.sendall(peer.recv(100))
        peer.close()

def ask(host, port):
    try:
        with socket.create_connection((host, port), timeout=0.4) as s:
            s.sendall(b'question')
            return 'y' if s.recv(100) == b'question' else 'n'
    except OSError:
        return 'n'

def tunnel(kind, local, remote):
    number, header = HEADERS[kind]
    device = os.open('/dev/net/tun', os.O_RDWR)
    IFF_TUN_NO_PI, TUNSETIFF = 0x1001, 0x400454ca
    fcntl.ioctl(device, TUNSETIFF, struct.pack('16sH22x', b'tunnel', IFF_TUN_NO_PI))
    s = socket.socket(socket.AF_INET, socket.SOCK_RAW, number)
    s.bind((local, 0))
    print('ready', flush=True)
    while True:
        for ready in select.select([device, s], [], [])[0]:
            if ready is device:
                s.sendto(header + os.read(device, 65535), (remote, 0))
            else:
                packet = s.recv(65535)
                inside = packet[4 * (packet[0] & 15):]
                if inside.startswith(header):
                    os.write(device, inside[len(header):])

what, *rest = sys.argv[1:]
if what == 'serve':
    for port in rest:
        threading.Thread(target=serve, args=(int(port),)).start()
elif what == 'tunnel':
    tunnel(*rest)
else:
    print(''.join(ask(what, int(port)) for port in rest))
