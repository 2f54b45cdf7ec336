//! Some job must have pods that may go.

use crate::cycle::Cycle;
use crate::cycle::relax::memory::SomeVictim;
use crate::cycle::relax::{Asked, Relaxation};

impl Relaxation for SomeVictim {
    fn name(&self) -> &'static str {
        "some victim"
    }

    fn admits(&mut self, cycle: &Cycle, asked: &Asked) -> bool {
        !asked.permitted(cycle).is_empty(cycle.state)
    }
}
