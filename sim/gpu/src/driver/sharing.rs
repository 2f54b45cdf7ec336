//! MPS inside the driver: servers, their clients, and what a fault does to them.
//!
//! Owns servers and tickets. A server gives a ticket per client; a process with the ticket has the
//! limits in it. Pure, like all of [`State`]. Must never: let a client out of its server's hands.

use std::collections::BTreeMap;

use super::state::{CardId, ConnId, ContextKind, Refusal, Server, ServerStatus, State, Ticket};
use crate::cuda::CudaError;

impl State {
    /// Makes an MPS server's context.
    pub fn make_server_context(&mut self, conn: ConnId, card: CardId) -> Result<(), Refusal> {
        self.process(conn)?;
        self.reachable(conn, card)?;
        self.reserve(conn, card)?;
        let overhead = self.hardware.mps.server_mib;
        if let Err(refusal) = self.fits(conn, card, &ContextKind::Server, overhead) {
            self.release(conn, card);
            return Err(refusal);
        }
        self.servers.entry(conn).or_insert(Server {
            status: ServerStatus::Initializing,
            faulter: 0,
        });
        self.insert_context(conn, card, ContextKind::Server, overhead);
        Ok(())
    }

    /// The server has all its contexts.
    pub fn server_ready(&mut self, conn: ConnId) -> Result<(), Refusal> {
        self.server_mut(conn)?.status = ServerStatus::Active;
        Ok(())
    }

    /// The pid of the client that faulted a server.
    pub fn faulter(&self, conn: ConnId) -> Option<i32> {
        let server = self.servers.get(&conn)?;
        Some(server.faulter).filter(|pid| *pid > 0)
    }

    /// A server's status.
    pub fn server_status(&self, conn: ConnId) -> Option<ServerStatus> {
        self.servers.get(&conn).map(|s| s.status)
    }

    /// A server lets one client in, with these limits. Answers the ticket.
    pub fn attach(
        &mut self,
        conn: ConnId,
        limits: BTreeMap<CardId, u64>,
        percent: u32,
    ) -> Result<String, Refusal> {
        if self.server_mut(conn)?.status != ServerStatus::Active {
            return Err((
                CudaError::MpsServerNotReady,
                "the MPS server is not ready".to_owned(),
            ));
        }
        let ticket = format!("t{}-{}", conn, self.fresh());
        self.tickets.insert(
            ticket.clone(),
            Ticket {
                server: conn,
                limits,
                percent,
                claimed: None,
            },
        );
        Ok(ticket)
    }

    /// Tickets of a server that a living process holds.
    pub fn clients(&self, server: ConnId) -> Vec<(String, ConnId)> {
        self.tickets
            .iter()
            .filter(|(_, t)| t.server == server)
            .filter_map(|(key, t)| t.claimed.map(|conn| (key.clone(), conn)))
            .collect()
    }

    /// Takes an unclaimed ticket back, or breaks the client that holds it.
    pub fn terminate(&mut self, server: ConnId, ticket: &str) -> Result<(), Refusal> {
        let found = self.tickets.get(ticket).filter(|t| t.server == server);
        match found.map(|t| t.claimed) {
            None => Err((CudaError::InvalidValue, "no such client".to_owned())),
            Some(None) => {
                self.tickets.remove(ticket);
                Ok(())
            }
            Some(Some(conn)) => {
                if let Some(process) = self.processes.get_mut(&conn) {
                    process.sticky.get_or_insert(CudaError::MpsClientTerminated);
                    for context in process.contexts.values_mut() {
                        context.busy = 0;
                    }
                }
                Ok(())
            }
        }
    }

    /// The process reads an invalid address: XID 31 on its cards, its own end, and under MPS the
    /// end of every client that shares a card with it.
    pub fn fault(&mut self, conn: ConnId) -> Result<(), Refusal> {
        let process = self.process(conn)?;
        let pid = process.pid;
        let cards: Vec<CardId> = process.contexts.keys().copied().collect();
        let server = process
            .ticket
            .as_ref()
            .and_then(|t| self.tickets.get(t))
            .map(|t| t.server);
        for card in &cards {
            self.emit(*card, 31);
        }
        match server {
            Some(server) => {
                self.fault_server(server, &cards, CudaError::IllegalAddress);
                if let Some(server) = self.servers.get_mut(&server) {
                    server.faulter = pid;
                }
            }
            None => {
                if let Some(process) = self.processes.get_mut(&conn) {
                    process.sticky = Some(CudaError::IllegalAddress);
                }
            }
        }
        Ok(())
    }

    /// A server goes into FAULT as if a client of it had faulted.
    pub fn fault_whole_server(&mut self, server: ConnId) -> Result<(), Refusal> {
        self.server_mut(server)?.faulter = 0;
        let cards: Vec<CardId> = (0..self.cards.len()).collect();
        self.fault_server(server, &cards, CudaError::IllegalAddress);
        Ok(())
    }

    fn server_mut(&mut self, conn: ConnId) -> Result<&mut Server, Refusal> {
        self.servers
            .get_mut(&conn)
            .ok_or_else(|| (CudaError::InvalidValue, "not an MPS server".to_owned()))
    }

    pub(super) fn claim(
        &mut self,
        conn: ConnId,
        card: CardId,
        key: &str,
    ) -> Result<ContextKind, Refusal> {
        let refused = |text: &str| (CudaError::MpsConnectionFailed, text.to_owned());
        let ticket = self
            .tickets
            .get(key)
            .ok_or_else(|| refused("the MPS server does not know this client"))?;
        let (server, percent) = (ticket.server, ticket.percent);
        let limit_mib = ticket.limits.get(&card).copied();
        if ticket.claimed.is_some_and(|holder| holder != conn) {
            return Err(refused("another process came with this ticket"));
        }
        if self.server_status(server) != Some(ServerStatus::Active) {
            return Err((
                CudaError::MpsServerNotReady,
                "the MPS server is not ready".to_owned(),
            ));
        }
        if !self
            .processes
            .get(&server)
            .is_some_and(|p| p.contexts.contains_key(&card))
        {
            return Err((
                CudaError::InvalidDevice,
                "the MPS server does not serve this card".to_owned(),
            ));
        }
        let clients = self
            .processes
            .values()
            .filter_map(|p| p.contexts.get(&card))
            .filter(|c| matches!(c.kind, ContextKind::Client { server: s, .. } if s == server))
            .count();
        if clients >= self.hardware.max_clients() {
            return Err((
                CudaError::MpsMaxClientsReached,
                format!("{clients} clients hold this card already"),
            ));
        }
        if let Some(ticket) = self.tickets.get_mut(key) {
            ticket.claimed = Some(conn);
        }
        if let Some(process) = self.processes.get_mut(&conn) {
            process.ticket = Some(key.to_owned());
        }
        Ok(ContextKind::Client {
            server,
            limit_mib,
            percent,
        })
    }

    /// Every client of the server on one of these cards is broken, and the server accepts no client
    /// until they have ended.
    pub(super) fn fault_server(&mut self, server: ConnId, cards: &[CardId], error: CudaError) {
        for (_, conn) in self.clients(server) {
            if let Some(process) = self.processes.get_mut(&conn)
                && process.contexts.keys().any(|c| cards.contains(c))
            {
                process.sticky.get_or_insert(error);
            }
        }
        if let Some(server) = self.servers.get_mut(&server) {
            server.status = ServerStatus::Fault;
        }
        self.settle(server);
    }

    /// A faulted server without broken clients recreates its contexts.
    pub(super) fn settle(&mut self, server: ConnId) {
        let broken = self.clients(server).iter().any(|(_, conn)| {
            self.processes.get(conn).is_some_and(|p| {
                p.sticky
                    .is_some_and(|e| e != CudaError::MpsClientTerminated)
            })
        });
        if let Some(server) = self.servers.get_mut(&server)
            && server.status == ServerStatus::Fault
            && !broken
        {
            server.status = ServerStatus::Active;
        }
    }
}
