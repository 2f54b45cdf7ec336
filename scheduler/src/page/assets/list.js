// A long list, a page of it at a time: filter, sort and paging are the server's work, so
// that a browser never holds more than one page however large the cluster is.

import { h, number } from './dom.js';

export const ROWS = 100;

/** What the address says of the list. */
export function spanOf(parameters) {
  return {
    filter: parameters.get('filter') ?? '', sort: parameters.get('sort') ?? '',
    state: parameters.get('state') ?? '', queue: parameters.get('queue') ?? '', namespace: parameters.get('namespace') ?? '',
    from: Number(parameters.get('from')) || 0,
  };
}

/** As a query, without what is unset. */
export function query(span) {
  const set = Object.entries(span).filter(([, value]) => value);
  return new URLSearchParams(set).toString();
}

/** Goes to the same list, otherwise. */
function go(page, span, change) {
  location.hash = `#/${page}?${query({ ...span, from: 0, ...change })}`;
}

/** Filter, states and namespaces. */
export function tools(page, span, states, namespaces = []) {
  const field = (event) => go(page, currentSpan(), { filter: event.target.value });
  return h('form', { class: 'tools', role: 'search', onsubmit: (event) => event.preventDefault() },
    h('label', {}, 'Filter ', h('input', { id: 'filter', type: 'search', value: span.filter, autocomplete: 'off', onchange: field })),
    h('label', {}, 'Show ', h('select', { id: 'show', onchange: (event) => go(page, currentSpan(), { state: event.target.value }) },
      states.map(([value, text]) => h('option', { value, selected: span.state === value }, text)))),
    namespaces.length > 1 || span.namespace ? h('label', {}, 'Namespace ', h('select', { id: 'namespace', onchange: (event) => go(page, currentSpan(), { namespace: event.target.value }) },
      h('option', { value: '' }, 'all'), [...new Set([...namespaces, span.namespace])].filter(Boolean).map((name) => h('option', { value: name, selected: span.namespace === name }, name)))) : null,
    span.queue ? h('span', {}, `Queue ${span.queue} `, h('a', { href: `#/${page}` }, 'all queues')) : null);
}

function currentSpan() {
  return spanOf(new URLSearchParams(location.hash.split('?')[1] ?? ''));
}

/** Columns: [title, key to sort by or null, class, row → content]. */
export function table(page, span, caption, columns, rows) {
  const sorted = span.sort.replace(/^-/, '');
  const head = columns.map(([title, key, kind]) => {
    const on = key && sorted === key;
    const back = on && !span.sort.startsWith('-');
    const order = on ? (back ? 'ascending' : 'descending') : undefined;
    const flip = () => {
      const now = currentSpan();
      go(page, now, { sort: now.sort === key ? `-${key}` : key });
    };
    return h('th', { scope: 'col', class: kind, 'aria-sort': order },
      key ? h('button', { id: `sort-${key}`, onclick: flip }, title + (on ? (back ? ' ▲' : ' ▼') : '')) : title);
  });
  const body = rows.map((row) => h('tr', {}, columns.map(([title, , kind, of], at) => h(at ? 'td' : 'th', { class: kind, scope: at ? undefined : 'row', 'data-title': title }, of(row)))));
  return h('div', { class: 'scroll', tabindex: 0, role: 'region', 'aria-label': caption },
    h('table', {}, h('caption', {}, caption), h('thead', {}, h('tr', {}, head)), h('tbody', {}, body)));
}

/** Which rows, and the way to others. */
export function pager(page, span, answer) {
  const last = Math.floor(Math.max(0, answer.total - 1) / ROWS) * ROWS;
  const to = (text, step) => {
    const from = (event) => {
      const now = currentSpan();
      return { first: 0, previous: Math.max(0, now.from - ROWS), next: now.from + ROWS, last: event.currentTarget.dataset.last }[step];
    };
    const off = step === 'first' || step === 'previous' ? span.from === 0 : span.from >= last;
    return h('button', { id: `page-${step}`, disabled: off, 'data-last': last, onclick: (event) => go(page, currentSpan(), { from: from(event) }) }, text);
  };
  const end = answer.from + answer.rows.length;
  const words = answer.total ? `${number(answer.from + 1)} to ${number(end)} of ${number(answer.total)}` : 'nothing';
  return h('div', { class: 'pager', role: 'group', 'aria-label': 'Pages of the list' },
    to('First', 'first'), to('Previous', 'previous'), h('span', { id: 'words' }, words), to('Next', 'next'), to('Last', 'last'));
}
