//! Some job must have pods that may go.

use super::super::Cycle;
use super::{Asked, Relaxation};

#[derive(Debug)]
pub(super) struct SomeVictim;

impl Relaxation for SomeVictim {
    fn name(&self) -> &'static str {
        "some victim"
    }

    fn admits(&mut self, cycle: &Cycle, asked: &Asked) -> bool {
        !asked.permitted(cycle).is_empty(cycle.state)
    }
}
