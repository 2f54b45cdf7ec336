//! GPU instances and compute instances: their profiles, and how they are made and destroyed.
//!
//! As far as a program needs it that gives a whole GPU instance to one compute instance: of that there
//! is one profile for each size.

use std::ffi::c_uint;
use std::str::FromStr;

use crate::abi::{
    ARGUMENT_VERSION_MISMATCH, ComputeInstanceProfile, Device, GpuInstanceProfileV2,
    INVALID_ARGUMENT, Instance, NOT_FOUND, NOT_SUPPORTED, Out, Return, UNKNOWN, chars, code,
};
use crate::enumerate::card;
use crate::link::{self, Answer};

type GpuInstance = Instance<false>;
type ComputeInstance = Instance<true>;

/// `nvmlGpuInstanceProfileInfo_v2`.
const PROFILE_V2: c_uint = version::<GpuInstanceProfileV2>(2);

/// `NVML_STRUCT_VERSION`.
const fn version<T>(number: c_uint) -> c_uint {
    // The size of each struct here fits.
    #[expect(clippy::cast_possible_truncation, reason = "some hundred bytes")]
    let size = size_of::<T>() as c_uint;
    size | number << 24
}

fn field<T: FromStr>(row: &[String], at: usize) -> Result<T, Return> {
    row.get(at)
        .and_then(|text| text.parse().ok())
        .ok_or(UNKNOWN)
}

/// The profiles and GPU instances of a card in MIG mode.
fn table(device: Device) -> Result<(usize, Answer), Return> {
    card(device)?;
    let index = device.index()?;
    let answer = link::ask(&format!("mig index={index}"))?;
    if !answer.flag("mig") {
        return Err(NOT_SUPPORTED);
    }
    Ok((index, answer))
}

/// The row of a profile, by the column that names it.
fn profile(answer: &Answer, column: usize, wanted: c_uint) -> Result<Vec<String>, Return> {
    let mut rows = answer.rows("profiles").into_iter();
    let found = rows.find(|row| field::<c_uint>(row, column).is_ok_and(|is| is == wanted));
    found.ok_or(NOT_SUPPORTED)
}

/// The rows of a GPU instance: its own, and that of its profile.
fn rows_of(instance: GpuInstance) -> Result<(Vec<String>, Vec<String>), Return> {
    let (card, number) = instance.place()?;
    let (_, answer) = table(Device::of(card).ok_or(INVALID_ARGUMENT)?)?;
    let mut rows = answer.rows("gpu_instances").into_iter();
    let own = rows.find(|row| field::<usize>(row, 0).is_ok_and(|is| is == number));
    let own = own.ok_or(NOT_FOUND)?;
    let profile = profile(&answer, 1, field(&own, 1)?)?;
    Ok((own, profile))
}

/// Changes one instance, and answers the number of what was made.
fn change(verb: &str, card: usize, id: usize) -> Result<usize, Return> {
    link::ask(&format!("{verb} index={card} id={id}"))?.number("id")
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetGpuInstanceProfileInfoV(
    device: Device,
    number: c_uint,
    info: Out<GpuInstanceProfileV2>,
) -> Return {
    crate::link::enters("nvmlDeviceGetGpuInstanceProfileInfoV");
    code(table(device).and_then(|(_, answer)| {
        if info.get()?.version != PROFILE_V2 {
            return Err(ARGUMENT_VERSION_MISMATCH);
        }
        let row = profile(&answer, 0, number)?;
        let name: String = field(&row, 2)?;
        info.put(GpuInstanceProfileV2 {
            version: PROFILE_V2,
            id: field(&row, 1)?,
            peer_to_peer: 0,
            slices: field(&row, 3)?,
            most: field(&row, 4)?,
            multiprocessors: field(&row, 5)?,
            copy_engines: field(&row, 3)?,
            decoders: 0,
            encoders: 0,
            jpeg: 0,
            ofa: 0,
            memory_mb: field(&row, 6)?,
            name: chars(&format!("MIG {name}")),
        })
    }))
}

/// As in the real library, the array has room for as many as the profile can have.
#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetGpuInstances(
    device: Device,
    profile: c_uint,
    instances: Out<GpuInstance>,
    count: Out<c_uint>,
) -> Return {
    crate::link::enters("nvmlDeviceGetGpuInstances");
    code(table(device).and_then(|(card, answer)| {
        let mut found = Vec::new();
        for row in answer.rows("gpu_instances") {
            if field::<c_uint>(&row, 1)? == profile {
                found.push(GpuInstance::of(card, field(&row, 0)?).ok_or(UNKNOWN)?);
            }
        }
        instances.put_all(&found)?;
        count.put(c_uint::try_from(found.len()).map_err(|_| UNKNOWN)?)
    }))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceCreateGpuInstance(
    device: Device,
    profile: c_uint,
    instance: Out<GpuInstance>,
) -> Return {
    crate::link::enters("nvmlDeviceCreateGpuInstance");
    code(table(device).and_then(|(card, _)| {
        let number = change("mig-create", card, profile as usize)?;
        instance.put(GpuInstance::of(card, number).ok_or(UNKNOWN)?)
    }))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlGpuInstanceDestroy(instance: GpuInstance) -> Return {
    crate::link::enters("nvmlGpuInstanceDestroy");
    let destroyed = instance.place();
    code(destroyed.and_then(|(card, number)| change("mig-destroy", card, number).map(drop)))
}

/// One profile for each number of slices, with that number less one; of a GPU instance, that of its
/// whole size.
#[unsafe(no_mangle)]
extern "C" fn nvmlGpuInstanceGetComputeInstanceProfileInfo(
    instance: GpuInstance,
    number: c_uint,
    engines: c_uint,
    info: Out<ComputeInstanceProfile>,
) -> Return {
    crate::link::enters("nvmlGpuInstanceGetComputeInstanceProfileInfo");
    code(rows_of(instance).and_then(|(_, profile)| {
        let slices: c_uint = field(&profile, 3)?;
        // Seven slices are the fifth constant.
        if number != (slices - 1).min(4) || engines != 0 {
            return Err(NOT_SUPPORTED);
        }
        info.put(ComputeInstanceProfile {
            id: number,
            slices,
            most: 1,
            multiprocessors: field(&profile, 5)?,
            copy_engines: slices,
            decoders: 0,
            encoders: 0,
            jpeg: 0,
            ofa: 0,
        })
    }))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlGpuInstanceGetComputeInstances(
    instance: GpuInstance,
    _profile: c_uint,
    instances: Out<ComputeInstance>,
    count: Out<c_uint>,
) -> Return {
    crate::link::enters("nvmlGpuInstanceGetComputeInstances");
    code(rows_of(instance).and_then(|(own, _)| {
        let there = field::<c_uint>(&own, 2)? == 1;
        if there {
            let (card, number) = instance.place()?;
            instances.put(ComputeInstance::of(card, number).ok_or(UNKNOWN)?)?;
        }
        count.put(c_uint::from(there))
    }))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlGpuInstanceCreateComputeInstance(
    instance: GpuInstance,
    _profile: c_uint,
    made: Out<ComputeInstance>,
) -> Return {
    crate::link::enters("nvmlGpuInstanceCreateComputeInstance");
    code(instance.place().and_then(|(card, number)| {
        change("mig-compute", card, number)?;
        made.put(ComputeInstance::of(card, number).ok_or(UNKNOWN)?)
    }))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlComputeInstanceDestroy(instance: ComputeInstance) -> Return {
    crate::link::enters("nvmlComputeInstanceDestroy");
    let destroyed = instance.place();
    code(destroyed.and_then(|(card, number)| change("mig-destroy-compute", card, number).map(drop)))
}
