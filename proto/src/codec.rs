//! Protobuf with small buffers, for streams of which one process has thousands: an agent's is open
//! for as long as the agent runs, and mostly idle.

use prost::Message;
use std::marker::PhantomData;
use tonic::codec::{BufferSettings, Codec};
use tonic_prost::ProstCodec;

/// Allocated for each direction of a stream, in bytes; tonic's default is 8 KiB. An
/// acknowledgement takes less, a node's status with eight cards grows it once.
const BUFFER: usize = 1024;
/// Written at once, in bytes: tonic's default.
const YIELD: usize = 32 * 1024;

/// As [`ProstCodec`] on the wire.
#[derive(Debug)]
pub struct SmallBuffers<T, U>(PhantomData<(T, U)>);

impl<T, U> Default for SmallBuffers<T, U> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<T, U> Codec for SmallBuffers<T, U>
where
    T: Message + Send + 'static,
    U: Message + Default + Send + 'static,
{
    type Encode = T;
    type Decode = U;
    type Encoder = <ProstCodec<T, U> as Codec>::Encoder;
    type Decoder = <ProstCodec<T, U> as Codec>::Decoder;

    fn encoder(&mut self) -> Self::Encoder {
        ProstCodec::<T, U>::raw_encoder(BufferSettings::new(BUFFER, YIELD))
    }

    fn decoder(&mut self) -> Self::Decoder {
        ProstCodec::<T, U>::raw_decoder(BufferSettings::new(BUFFER, YIELD))
    }
}
