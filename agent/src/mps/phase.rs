//! A server's phase between releases: an enum, and a string for older releases.
//!
//! In: a report that a supervisor sends or has sent. Out: the same with both fields, or with the
//! enum. Nothing else reads or writes the string.

use proto::mps::{Observation, ServerPhase, ServerState};

const WORDS: [(ServerPhase, &str); 6] = [
    (ServerPhase::Absent, "Absent"),
    (ServerPhase::Starting, "Starting"),
    (ServerPhase::Ready, "Ready"),
    (ServerPhase::ServerFault, "ServerFault"),
    (ServerPhase::Draining, "Draining"),
    (ServerPhase::Dead, "Dead"),
];

/// As people and metrics read it.
pub fn word(phase: ServerPhase) -> &'static str {
    let mut words = WORDS.iter().filter(|(one, _)| *one == phase);
    words.next().map_or("Unknown", |(_, word)| word)
}

/// The supervisor's side: with the word for an older agent.
#[expect(deprecated, reason = "the word is written here alone")]
pub fn written(mut server: ServerState) -> ServerState {
    word(server.phase()).clone_into(&mut server.state);
    server
}

/// The agent's side: with the phase from an older supervisor's string. An unknown string is
/// `Unspecified`.
#[expect(deprecated, reason = "the word is read here alone")]
pub fn read(mut seen: Observation) -> Observation {
    for server in &mut seen.servers {
        let said = WORDS.iter().find(|(_, word)| *word == server.state);
        if server.phase == i32::from(ServerPhase::Unspecified)
            && let Some((phase, _)) = said
        {
            server.set_phase(*phase);
        }
    }
    seen
}

#[cfg(test)]
mod tests {
    use super::super::plan;
    use super::*;

    #[expect(deprecated, reason = "as a supervisor writes it")]
    fn understood(phase: i32, word: &str) -> ServerState {
        let server = ServerState {
            name: "GPU-0".into(),
            state: word.into(),
            phase,
            ..ServerState::default()
        };
        let mut seen = read(Observation {
            servers: vec![server],
            ..Observation::default()
        });
        seen.servers.remove(0)
    }

    #[test]
    fn every_phase_is_understood_from_this_release_and_from_the_one_before() {
        for (phase, word) in WORDS {
            assert_eq!(understood(0, word).phase(), phase, "{word}");
            assert_eq!(understood(phase.into(), word).phase(), phase, "{word}");
            // A release that does not write the word any more.
            assert_eq!(understood(phase.into(), "").phase(), phase, "{word}");
        }
        assert_eq!(ServerPhase::try_from(7).ok(), None, "one more than words");
    }

    #[test]
    #[expect(deprecated, reason = "as an older agent reads it")]
    fn an_older_agent_finds_the_word_that_it_knows() {
        for (phase, word) in WORDS {
            let server = ServerState {
                phase: phase.into(),
                ..ServerState::default()
            };
            assert_eq!(written(server).state, word);
        }
    }

    #[test]
    fn what_is_not_understood_is_not_ready_and_may_hold_its_card() {
        for (phase, word) in [(0, ""), (0, "Frozen"), (0, "ready"), (7, "Ready"), (-1, "")] {
            let server = understood(phase, word);
            assert_eq!(server.phase(), ServerPhase::Unspecified, "{phase} {word}");
            assert!(plan::holds(&server, &"GPU-0".into()), "{phase} {word}");
        }
        assert_eq!(word(ServerPhase::Unspecified), "Unknown");
    }
}
