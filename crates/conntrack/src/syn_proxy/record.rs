//! A connection that the proxy has opened, in a record.

use super::options::Timestamps;
use super::{Promise, Proxied};
use crate::seqadj::{Adjustment, Rescale, Shift};
use flow::codec::{DecodeError, Reader, Write};

impl Proxied {
    pub(crate) fn write(&self, to: &mut Vec<u8>) {
        let Self { initial, cookie, segment_size, window, promise, timestamps, adjustment } = self;
        to.u32(*initial);
        to.u32(*cookie);
        to.u16(*segment_size);
        to.u16(*window);
        to.option(promise.segment_size, |to, size| to.u16(size));
        to.option(promise.window_scale, |to, scale| to.u8(scale));
        for flag in [promise.timestamps, promise.sack, promise.ecn, promise.by_rule] {
            to.flag(flag);
        }
        to.option(timestamps.as_ref(), |to, Timestamps { value, echo }| {
            to.u32(*value);
            to.u32(*echo);
        });
        to.option(adjustment.as_ref(), |to, Adjustment { sequences, timestamps, windows }| {
            sequences.iter().for_each(|shift| shift.write(to));
            timestamps.iter().for_each(|timestamp| to.u32(*timestamp));
            windows.iter().for_each(|scales| to.bytes(&[scales.from, scales.to]));
        });
    }

    pub(crate) fn read(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Self {
            initial: from.u32()?,
            cookie: from.u32()?,
            segment_size: from.u16()?,
            window: from.u16()?,
            promise: Promise {
                segment_size: from.option(Reader::u16)?,
                window_scale: from.option(Reader::u8)?,
                timestamps: from.flag()?,
                sack: from.flag()?,
                ecn: from.flag()?,
                by_rule: from.flag()?,
            },
            timestamps: from
                .option(|from| Ok(Timestamps { value: from.u32()?, echo: from.u32()? }))?,
            adjustment: from.option(|from| {
                let sequences = [Shift::read(from)?, Shift::read(from)?];
                let timestamps = [from.u32()?, from.u32()?];
                let mut scales = || from.array().map(|[from, to]| Rescale { from, to });
                Ok(Adjustment { sequences, timestamps, windows: [scales()?, scales()?] })
            })?,
        })
    }
}
