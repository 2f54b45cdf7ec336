//! Functions and macros that an expression can use: of those of Kubernetes' base environment
//! (`k8s.io/apiserver/pkg/cel/environment`) the ones that are of use for a device. An expression
//! that uses another one has no answer, and says so.

use super::{quantity, semver};
use cel::common::ast::{ComprehensionExpr, Expr, ListExpr};
use cel::common::types::{CelBool, CelInt, CelList, CelString, DYN_TYPE, LIST_TYPE};
use cel::common::value::{CowVal, Val};
use cel::parser::Macro;
use cel::{DeclarationError, Env, ExecutionError, add_member_overload};

/// Kubernetes' `ResourceSliceMaxAttributeValuesPerDevice`.
const MOST_INCLUDED: usize = 48;

/// The environment of all expressions.
#[allow(clippy::expect_used)] // Its declarations are these here, and a test makes one.
pub(super) fn new() -> Env {
    let mut env = Env::stdlib();
    declare(&mut env).expect("no declaration contradicts another one");
    env
}

fn declare(env: &mut Env) -> Result<(), DeclarationError> {
    cel::extensions::strings(env)?;
    cel::extensions::lists(env)?;
    quantity::extension(env)?;
    semver::extension(env)?;
    env.add_macro(bind())?;
    add_member_overload!(env, fn find: (CelString, CelString) -> Result<CelString>)?;
    add_member_overload!(env, fn find_all: (CelString, CelString) -> Result<CelList>)?;
    add_member_overload!(env, fn find_most: (CelString, CelString, CelInt) -> Result<CelList>, name = "findAll")?;
    env.add_member_overload("isSorted", "list.isSorted()", LIST_TYPE, vec![], is_sorted)?;
    env.add_member_overload("min", "list.min()", LIST_TYPE, vec![], min)?;
    env.add_member_overload("max", "list.max()", LIST_TYPE, vec![], max)?;
    env.add_member_overload("sum", "list.sum()", LIST_TYPE, vec![], sum)?;
    let any = || vec![DYN_TYPE];
    env.add_member_overload("includes", "dyn.includes(dyn)", DYN_TYPE, any(), includes)?;
    env.add_member_overload("indexOf", "list.indexOf(dyn)", LIST_TYPE, any(), index_of)?;
    env.add_member_overload(
        "lastIndexOf",
        "list.lastIndexOf(dyn)",
        LIST_TYPE,
        any(),
        last_index_of,
    )?;
    for (name, op) in [
        (
            "sets.contains",
            contains as cel::common::functions::Function,
        ),
        ("sets.equivalent", equivalent),
        ("sets.intersects", intersects),
    ] {
        env.add_overload(name, name, vec![LIST_TYPE, LIST_TYPE], op)?;
    }
    Ok(())
}

/// `cel.bind(name, value, expression)`: the expression with the value under that name.
fn bind() -> Macro {
    Macro::receiver("bind", 3, |helper, target, args| {
        let is_cel = target
            .as_ref()
            .is_some_and(|target| target.expr == Expr::Ident("cel".to_owned()));
        let [name, _, _] = args.as_slice() else {
            return Ok(None);
        };
        let Expr::Ident(name) = &name.expr else {
            return Ok(None);
        };
        if !is_cel {
            return Ok(None);
        }
        let name = name.clone();
        target.take();
        let mut args = args.drain(1..);
        let (Some(value), Some(expression)) = (args.next(), args.next()) else {
            return Ok(None);
        };
        let nothing = helper.next_expr(Expr::List(ListExpr::new(Vec::new())));
        let never = helper.next_expr(Expr::Literal(cel::common::ast::LiteralValue::Boolean(
            false.into(),
        )));
        let same = helper.next_expr(Expr::Ident(name.clone()));
        let fold = ComprehensionExpr {
            iter_range: nothing,
            iter_var: "#unused".to_owned(),
            iter_var2: None,
            accu_var: name,
            accu_init: value,
            loop_cond: never,
            loop_step: same,
            result: expression,
        };
        Ok(Some(helper.next_expr(Expr::Comprehension(Box::new(fold)))))
    })
}

fn regex(pattern: &CelString<'_>) -> Result<regex::Regex, ExecutionError> {
    regex::RegexBuilder::new(pattern.inner())
        .size_limit(1 << 20)
        .build()
        .map_err(|_| ExecutionError::function_error("find", "it is no regular expression"))
}

fn find<'v>(
    this: &CelString<'v>,
    pattern: &CelString<'v>,
) -> Result<CelString<'static>, ExecutionError> {
    let found = regex(pattern)?
        .find(this.inner())
        .map(|found| found.as_str().to_owned());
    Ok(CelString::from(found.unwrap_or_default()))
}

fn find_all<'v>(
    this: &CelString<'v>,
    pattern: &CelString<'v>,
) -> Result<CelList<'static>, ExecutionError> {
    find_most(this, pattern, &CelInt::from(-1))
}

fn find_most<'v>(
    this: &CelString<'v>,
    pattern: &CelString<'v>,
    most: &CelInt,
) -> Result<CelList<'static>, ExecutionError> {
    let most = usize::try_from(*most.inner()).unwrap_or(usize::MAX);
    let regex = regex(pattern)?;
    let all = regex.find_iter(this.inner()).take(most);
    let all = all.map(|found| Box::new(CelString::from(found.as_str().to_owned())) as Box<dyn Val>);
    Ok(CelList::from(all.collect::<Vec<_>>()))
}

type Args<'b, 'v> = Vec<CowVal<'b, 'v>>;
type Answer<'b, 'v> = Result<CowVal<'b, 'v>, ExecutionError>;

/// The elements of the list that an argument is.
fn elements<'a, 'v>(args: &'a Args<'_, 'v>, at: usize) -> Vec<&'a (dyn Val + 'v)> {
    let list = args.get(at).and_then(|list| list.as_iterable());
    let mut elements = Vec::new();
    if let Some(list) = list {
        let mut each = list.iter();
        while let Some(element) = each.next() {
            elements.push(element);
        }
    }
    elements
}

fn before(a: &dyn Val, b: &dyn Val) -> Result<bool, ExecutionError> {
    let comparer = a.as_comparer();
    let comparer = comparer
        .ok_or_else(|| ExecutionError::function_error("list", "its elements are in no order"))?;
    Ok(comparer.compare(b)?.is_lt())
}

fn is_sorted<'b, 'v>(args: Args<'b, 'v>) -> Answer<'b, 'v> {
    let all = elements(&args, 0);
    let mut sorted = true;
    for pair in all.windows(2) {
        sorted &= !before(pair[1], pair[0])?;
    }
    Ok(CowVal::owned(CelBool::from(sorted)))
}

/// The first element before which no other one is, by that order.
fn first<'b, 'v>(
    args: &Args<'b, 'v>,
    before: impl Fn(&dyn Val, &dyn Val) -> Result<bool, ExecutionError>,
) -> Answer<'b, 'v> {
    let mut best: Option<&dyn Val> = None;
    for element in elements(args, 0) {
        if match best {
            None => true,
            Some(best) => before(element, best)?,
        } {
            best = Some(element);
        }
    }
    let best = best.ok_or_else(|| {
        ExecutionError::function_error("list", "an empty list has neither min nor max")
    })?;
    Ok(CowVal::Owned(best.clone_as_boxed()))
}

fn min<'b, 'v>(args: Args<'b, 'v>) -> Answer<'b, 'v> {
    first(&args, before)
}

fn max<'b, 'v>(args: Args<'b, 'v>) -> Answer<'b, 'v> {
    first(&args, |a, b| before(b, a))
}

/// Of none it is 0.
fn sum<'b, 'v>(args: Args<'b, 'v>) -> Answer<'b, 'v> {
    let mut sum: Option<Box<dyn Val>> = None;
    for element in elements(&args, 0) {
        sum = Some(match sum {
            None => element.clone_as_boxed(),
            Some(sum) => {
                let adder = sum.as_adder();
                let adder =
                    adder.ok_or_else(|| ExecutionError::function_error("sum", "no numbers"))?;
                adder.add(element)?.clone_as_boxed()
            }
        });
    }
    Ok(match sum {
        Some(sum) => CowVal::Owned(sum),
        None => CowVal::owned(CelInt::from(0)),
    })
}

/// Whether it is that value, or a list that has it.
fn includes<'b, 'v>(args: Args<'b, 'v>) -> Answer<'b, 'v> {
    let (Some(of), Some(value)) = (args.first(), args.get(1)) else {
        return Ok(CowVal::owned(CelBool::from(false)));
    };
    let is = if *of.get_type() == LIST_TYPE {
        let all = elements(&args, 0);
        let at = all.iter().position(|one| one.equals(&**value));
        if all.len() > MOST_INCLUDED && at.is_none_or(|at| at >= MOST_INCLUDED) {
            return Err(ExecutionError::function_error(
                "includes",
                "too long a list",
            ));
        }
        at.is_some()
    } else {
        of.equals(&**value)
    };
    Ok(CowVal::owned(CelBool::from(is)))
}

fn place<'b, 'v>(at: Option<usize>) -> Answer<'b, 'v> {
    let at = at.and_then(|at| i64::try_from(at).ok()).unwrap_or(-1);
    Ok(CowVal::owned(CelInt::from(at)))
}

fn index_of<'b, 'v>(args: Args<'b, 'v>) -> Answer<'b, 'v> {
    let mut all = elements(&args, 0).into_iter();
    place(all.position(|one| args.get(1).is_some_and(|other| one.equals(&**other))))
}

fn last_index_of<'b, 'v>(args: Args<'b, 'v>) -> Answer<'b, 'v> {
    let all = elements(&args, 0);
    place(
        all.iter()
            .rposition(|one| args.get(1).is_some_and(|other| one.equals(&**other))),
    )
}

fn has_all(of: &[&dyn Val], in_: &[&dyn Val]) -> bool {
    of.iter()
        .all(|one| in_.iter().any(|other| one.equals(*other)))
}

fn contains<'b, 'v>(args: Args<'b, 'v>) -> Answer<'b, 'v> {
    let is = has_all(&elements(&args, 1), &elements(&args, 0));
    Ok(CowVal::owned(CelBool::from(is)))
}

fn equivalent<'b, 'v>(args: Args<'b, 'v>) -> Answer<'b, 'v> {
    let (one, other) = (elements(&args, 0), elements(&args, 1));
    let is = has_all(&one, &other) && has_all(&other, &one);
    Ok(CowVal::owned(CelBool::from(is)))
}

fn intersects<'b, 'v>(args: Args<'b, 'v>) -> Answer<'b, 'v> {
    let (one, other) = (elements(&args, 0), elements(&args, 1));
    let is = one.iter().any(|one| has_all(&[*one], &other));
    Ok(CowVal::owned(CelBool::from(is)))
}
