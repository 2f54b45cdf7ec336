//! Memory that is held past CUDA: by a graphics context, or by a client of the kernel module.

use super::state::{CardId, ConnId, ContextKind, Refusal, State};

/// What a graphics context costs before its first allocation, MiB: of the size that
/// `nvidia-smi` shows for an idle one.
const GRAPHICS_MIB: u64 = 8;

impl State {
    /// Takes memory past CUDA, as a graphics program or one that uses the kernel module directly
    /// does: only the device nodes and the card's own bounds are checked.
    pub fn hold_outside_cuda(
        &mut self,
        conn: ConnId,
        card: CardId,
        kind: ContextKind,
        mib: u64,
    ) -> Result<(), Refusal> {
        self.opened(conn, card)?;
        let there = self.process(conn)?.contexts.contains_key(&card);
        let overhead = match kind {
            ContextKind::Graphics if !there => GRAPHICS_MIB,
            _ => 0,
        };
        self.fits(conn, card, &kind, overhead.saturating_add(mib))?;
        if !there {
            self.insert_context(conn, card, kind, overhead);
        }
        let id = self.fresh();
        if let Some(context) = self
            .processes
            .get_mut(&conn)
            .and_then(|p| p.contexts.get_mut(&card))
        {
            context.allocations.insert(id, mib);
        }
        Ok(())
    }
}
