use std::{fs, path::Path};

use wire::{Malformed, checksum, dissect};

use crate::etherparse_view;

/// The frames of a classic pcap file with Ethernet frames; `None` for others.
fn frames(file: &[u8]) -> Option<Vec<Vec<u8>>> {
    let little = match file.first_chunk::<4>()? {
        [0xd4, 0xc3, 0xb2, 0xa1] | [0x4d, 0x3c, 0xb2, 0xa1] => true,
        [0xa1, 0xb2, 0xc3, 0xd4] | [0xa1, 0xb2, 0x3c, 0x4d] => false,
        _ => return None,
    };
    let word = |at: usize| -> Option<u32> {
        let bytes = *file.get(at..)?.first_chunk()?;
        Some(if little { u32::from_le_bytes(bytes) } else { u32::from_be_bytes(bytes) })
    };
    const ETHERNET: u32 = 1;
    if word(20)? & 0xffff != ETHERNET {
        return None;
    }
    let mut frames = Vec::new();
    let mut at = 24;
    while let (Some(captured), Some(original)) = (word(at + 8), word(at + 12)) {
        let frame = file.get(at + 16..at + 16 + captured as usize)?;
        at += 16 + captured as usize;
        // A capture that cut the frame says nothing about its lengths.
        if captured == original {
            frames.push(frame.to_vec());
        }
    }
    Some(frames)
}

/// In captures made on the sender the network card had not yet written the checksum of IPv4
/// headers.
fn complete(frame: &mut [u8]) {
    let header = 14;
    if frame.get(12..14) == Some(&[8, 0]) && frame.get(header + 10..header + 12) == Some(&[0, 0]) {
        checksum::fill_ipv4_header(&mut frame[header..]);
    }
}

#[test]
fn real_captures_are_understood() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/captures");
    let Ok(entries) = fs::read_dir(&folder) else {
        println!("SKIPPED: no folder {} with captures", folder.display());
        return;
    };
    let mut files = 0;
    for entry in entries {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "pcap") {
            continue;
        }
        let file = fs::read(&path).unwrap();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        let Some(mut frames) = frames(&file) else {
            println!("{name}: not a classic capture of Ethernet frames");
            continue;
        };
        let mut malformed: Vec<Malformed> = Vec::new();
        let mut compared = 0;
        for frame in &mut frames {
            complete(frame);
            if let Err(reason) = dissect(frame) {
                malformed.push(reason);
            }
            compared += usize::from(etherparse_view::compare(frame));
        }
        println!("{name}: {} frames, {compared} compared, malformed {malformed:?}", frames.len());
        if !name.contains("malformed") {
            assert!(malformed.len() * 100 <= frames.len(), "{name}: {malformed:?}");
        }
        files += 1;
    }
    assert!(files > 0, "no capture in {}", folder.display());
}
