//! What an expression may cost at most, before it is evaluated.
//!
//! The API server refuses an expression whose estimated cost is above
//! `CELSelectorExpressionMaxCost`. An expression that was written under other rules, or bypassed
//! the API server, must not delay the scheduler either: each step counts, and repeated parts count
//! as often as the longest list or map that an expression can have without being longer itself.

use cel::common::ast::{EntryExpr, Expr, IdedExpr};

/// Kubernetes' `CELSelectorExpressionMaxCost`.
const MOST: u64 = 1_000_000;
/// Attributes or capacities of a device, and characters of the longest of their values.
const LONGEST: u64 = 64;
/// No sensible expression is nested deeper than this.
const DEEPEST: u32 = 200;

pub(super) fn check(expression: &IdedExpr) -> Result<(), String> {
    let cost = of(expression, DEEPEST).ok_or("CEL compile error: it is nested too deeply")?;
    if cost > MOST {
        return Err(format!(
            "its CEL expression may cost more than {MOST} steps"
        ));
    }
    Ok(())
}

/// `None`: it is nested too deeply.
fn of(expression: &IdedExpr, deeper: u32) -> Option<u64> {
    let deeper = deeper.checked_sub(1)?;
    let all = |parts: &mut dyn Iterator<Item = &IdedExpr>| -> Option<u64> {
        let mut sum = 0_u64;
        for part in parts {
            sum = sum.saturating_add(of(part, deeper)?);
        }
        Some(sum)
    };
    let inner = match &expression.expr {
        Expr::Unspecified | Expr::Ident(_) | Expr::Literal(_) => 0,
        Expr::Select(select) => of(&select.operand, deeper)?,
        Expr::List(list) => all(&mut list.elements.iter())?,
        Expr::Call(call) => {
            let target = call.target.iter().map(|target| &**target);
            let parts = all(&mut target.chain(&call.args))?;
            // Strings and lists are walked.
            parts.saturating_add(if call.func_name.starts_with('_') {
                1
            } else {
                LONGEST
            })
        }
        Expr::Map(map) => entries(&map.entries, deeper)?,
        Expr::Struct(fields) => entries(&fields.entries, deeper)?,
        Expr::Comprehension(fold) => {
            let once = all(&mut [&fold.iter_range, &fold.accu_init, &fold.result].into_iter())?;
            let each = all(&mut [&fold.loop_cond, &fold.loop_step].into_iter())?;
            let times = match &fold.iter_range.expr {
                Expr::List(list) => list.elements.len() as u64,
                _ => LONGEST,
            };
            once.saturating_add(each.saturating_mul(times))
        }
    };
    Some(inner.saturating_add(1))
}

fn entries(all: &[cel::common::ast::IdedEntryExpr], deeper: u32) -> Option<u64> {
    all.iter().try_fold(0_u64, |sum, entry| {
        let cost = match &entry.expr {
            EntryExpr::StructField(field) => of(&field.value, deeper)?,
            EntryExpr::MapEntry(entry) => {
                of(&entry.key, deeper)?.saturating_add(of(&entry.value, deeper)?)
            }
        };
        Some(sum.saturating_add(cost))
    })
}
