//! Kubernetes' quantities in expressions (`k8s.io/apiserver/pkg/cel/library/quantity.go`).

use cel::common::types::{CelBool, CelDouble, CelInt, CelString, Type};
use cel::common::value::{StaticVal, Val};
use cel::{DeclarationError, Env, ExecutionError, add_member_overload, add_overload};
use std::any::Any;
use std::cmp::Ordering;

static TYPE: Type = Type::new_unspecified_type("kubernetes.Quantity");

const ONE: i128 = 1_000_000_000;

/// In billionths.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Quantity(pub(super) i128);

impl Val for Quantity {
    fn get_type(&self) -> &Type {
        &TYPE
    }

    fn cel_type() -> &'static Type {
        &TYPE
    }

    fn equals(&self, other: &dyn Val) -> bool {
        other.downcast_ref::<Self>() == Some(self)
    }

    fn clone_as_boxed<'v>(&self) -> Box<dyn Val + 'v> {
        Box::new(*self)
    }

    fn as_any(&self) -> Option<&dyn Any> {
        Some(self)
    }
}

impl StaticVal for Quantity {}

pub(super) fn extension(env: &mut Env) -> Result<(), DeclarationError> {
    env.add_type(TYPE.to_owned())?;
    add_overload!(env, fn quantity: (CelString) -> Result<Quantity>)?;
    add_overload!(env, fn is_quantity: (CelString) -> CelBool)?;
    add_member_overload!(env, fn sign: (Quantity) -> CelInt)?;
    add_member_overload!(env, fn is_greater_than: (Quantity, Quantity) -> CelBool)?;
    add_member_overload!(env, fn is_less_than: (Quantity, Quantity) -> CelBool)?;
    add_member_overload!(env, fn compare_to: (Quantity, Quantity) -> CelInt)?;
    add_member_overload!(env, fn as_approximate_float: (Quantity) -> CelDouble)?;
    add_member_overload!(env, fn as_integer: (Quantity) -> Result<CelInt>)?;
    add_member_overload!(env, fn is_integer: (Quantity) -> CelBool)?;
    add_member_overload!(env, fn add: (Quantity, Quantity) -> Quantity)?;
    add_member_overload!(env, fn add_int: (Quantity, CelInt) -> Quantity, name = "add")?;
    add_member_overload!(env, fn sub: (Quantity, Quantity) -> Quantity)?;
    add_member_overload!(env, fn sub_int: (Quantity, CelInt) -> Quantity, name = "sub")?;
    Ok(())
}

fn quantity(text: &CelString<'_>) -> Result<Quantity, ExecutionError> {
    let nano = api::quantity::nano(text.inner());
    nano.map(Quantity).ok_or_else(|| {
        ExecutionError::function_error("quantity", "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'")
    })
}

fn is_quantity(text: &CelString<'_>) -> CelBool {
    api::quantity::nano(text.inner()).is_some().into()
}

fn int(ordering: Ordering) -> CelInt {
    (ordering as i64).into()
}

fn sign(this: &Quantity) -> CelInt {
    int(this.0.cmp(&0))
}

fn is_greater_than(this: &Quantity, other: &Quantity) -> CelBool {
    (this > other).into()
}

fn is_less_than(this: &Quantity, other: &Quantity) -> CelBool {
    (this < other).into()
}

fn compare_to(this: &Quantity, other: &Quantity) -> CelInt {
    int(this.cmp(other))
}

#[allow(clippy::cast_precision_loss)] // Approximate by its name.
fn as_approximate_float(this: &Quantity) -> CelDouble {
    (this.0 as f64 / ONE as f64).into()
}

fn whole(this: Quantity) -> Option<i64> {
    let is_whole = this.0 % ONE == 0;
    i64::try_from(this.0 / ONE).ok().filter(|_| is_whole)
}

fn as_integer(this: &Quantity) -> Result<CelInt, ExecutionError> {
    let whole = whole(*this).map(CelInt::from);
    whole.ok_or_else(|| {
        ExecutionError::function_error("asInteger", "cannot convert value to integer")
    })
}

fn is_integer(this: &Quantity) -> CelBool {
    whole(*this).is_some().into()
}

fn add(this: &Quantity, other: &Quantity) -> Quantity {
    Quantity(this.0.saturating_add(other.0))
}

fn add_int(this: &Quantity, other: &CelInt) -> Quantity {
    add(this, &Quantity(i128::from(*other.inner()) * ONE))
}

fn sub(this: &Quantity, other: &Quantity) -> Quantity {
    Quantity(this.0.saturating_sub(other.0))
}

fn sub_int(this: &Quantity, other: &CelInt) -> Quantity {
    sub(this, &Quantity(i128::from(*other.inner()) * ONE))
}
