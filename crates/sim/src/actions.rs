//! The actions on the gateways, and the datagrams between them.

use crate::failure::{Invariant, Violation};
use crate::plan::{Action, SECOND};
use crate::world::{Event, World};

/// Time after a change of parts until all connections have another owner, if the link is well.
const UNTIL_PASSED: u64 = 3 * SECOND;
/// Kind of a greeting to which any node gets an answer.
const HELLO: u8 = 1;

impl World {
    /// An action of the plan.
    pub(crate) fn act(&mut self, at: usize) -> Result<(), Violation> {
        let (_, action) = self.plan.actions[at];
        self.note(|_| format!("{action:?}"));
        // One change of parts comes after the other.
        let is_settled = self.now > self.settled_at;
        match action {
            Action::KillActive if is_settled => match self.master {
                Some(active) => self.kill(active),
                None => Ok(()),
            },
            Action::KillStandby if is_settled => match self.master.map(|it| 1 - it) {
                Some(standby) if self.nodes[standby].is_some() => self.kill(standby),
                _ => Ok(()),
            },
            Action::Switch if is_settled && !self.is_cut() => match self.master {
                Some(active) if self.nodes[1 - active].is_some() => {
                    self.check()?;
                    self.protect(1 - active)?;
                    if self.plan.masquerades {
                        self.expose();
                    }
                    self.master = Some(1 - active);
                    self.give_up(active);
                    self.take_over(1 - active);
                    Ok(())
                }
                _ => Ok(()),
            },
            Action::KillActive | Action::KillStandby | Action::Switch => Ok(()),
            Action::Cut(..) if self.now <= self.settled_at + UNTIL_PASSED => Ok(()),
            Action::Cut(ways, time) => {
                for (until, is_cut) in self.cut_until.iter_mut().zip(ways) {
                    if is_cut {
                        *until = self.now + time;
                    }
                }
                Ok(())
            }
            Action::SyncWeather(weather) => {
                self.sync = weather;
                Ok(())
            }
            Action::Moves(node, count) => self.move_buckets(node, count),
            Action::Storm(node, time) => {
                self.after(0, Event::Storm(node, self.now + time));
                Ok(())
            }
            Action::Workers(node, count) => {
                let now = self.now;
                match &mut self.nodes[node] {
                    Some(it) => it.set_workers(count, now)?,
                    None => return Ok(()),
                }
                self.work(node)
            }
        }
    }

    /// True while the link between the gateways is cut.
    fn is_cut(&self) -> bool {
        self.cut_until.iter().any(|until| self.now < *until)
    }

    /// A bucket of a gateway moves, and soon another one.
    pub(crate) fn storm(&mut self, node: usize, until: u64) -> Result<(), Violation> {
        if self.now >= until {
            return Ok(());
        }
        let pause = self.random.between(50, 1000) as u64;
        self.after(pause, Event::Storm(node, until));
        self.move_buckets(node, 2)
    }

    /// Some buckets of a gateway move.
    pub(crate) fn move_buckets(&mut self, node: usize, count: usize) -> Result<(), Violation> {
        let now = self.now;
        for _ in 0..count {
            let Some(it) = &mut self.nodes[node] else { return Ok(()) };
            it.move_bucket(&mut self.random, now)?;
        }
        self.work(node)
    }

    /// A datagram reaches a gateway, as it was sent or not.
    pub(crate) fn datagram_arrives(
        &mut self,
        at: usize,
        bytes: &[u8],
        is_whole: bool,
    ) -> Result<(), Violation> {
        let now = self.now;
        let Some(node) = &mut self.nodes[at] else { return Ok(()) };
        let time = node.time(now);
        let before = (!is_whole).then(|| node.peer.status(time));
        let is_taken = node.peer.handle(time, bytes).is_ok();
        if let Some(before) = before {
            let mut after = node.peer.status(time);
            after.refusals = before.refusals.clone();
            if is_taken || after != before {
                // A hello to which nobody has agreed is answered, and leads to nothing.
                let what = format!("a damaged datagram of kind {} was taken", bytes[1]);
                return Err(Violation::new(Invariant::BadFrameChangesNothing, what));
            }
        }
        if is_taken && bytes.get(1) != Some(&HELLO) {
            let life = node.life;
            if !self.accepted.entry(life).or_default().insert(bytes.to_vec()) {
                let what = format!("gateway {at} has accepted a datagram twice");
                return Err(Violation::new(Invariant::BadFrameChangesNothing, what));
            }
        }
        let pause = self.random.between(0, self.plan.pace as usize / 4) as u64;
        self.look_at(at, now + pause);
        Ok(())
    }
}
