// Pages about time: the history, the victims of a request, the report.

import { h, memory, number } from './dom.js';
import { chart, moment } from './chart.js';
import { query, spanOf, table } from './list.js';

const noSpan = spanOf(new URLSearchParams());
const mib = (value) => memory(Math.round(value));
const gpus = (milli) => number(Math.round(milli) / 1000);
const go = (page, now, change) => { location.hash = `#/${page}?${query({ ...now, ...change })}`; };
const current = () => Object.fromEntries(new URLSearchParams(location.hash.split('?')[1] ?? ''));

/** The address of a history: what the scheduler remembers, or a range of Prometheus. */
export function timeOf(of, name, parameters) {
  const range = { '7d': 7, '30d': 30, '90d': 90 }[parameters.get('span')];
  if (range) {
    // To the minute, so that the answer can be known already.
    const until = Math.floor(Date.now() / 60e3) * 60e3;
    return `api/time?${query({ of, name, from: until - range * 864e5, until })}`;
  }
  const span = parameters.get('span') ?? 'hour';
  return `api/time?${query({ of, name, span: ['hour', 'day', 'fortnight'].includes(span) ? span : 'hour' })}`;
}

/** Which span; 14 days are remembered of queues alone. */
function spans(page, parameters, data, days) {
  const now = parameters.get('span') ?? 'hour';
  const choices = [['hour', 'hour'], ['day', 'day'], ...(days ? [['fortnight', '14 days']] : []), ...(data?.range ? [['7d', '7 days'], ['30d', '30 days'], ['90d', '90 days']] : [])];
  return h('div', { class: 'tools', role: 'group', 'aria-label': 'How far back' }, choices.map(([value, text]) => h('button', {
    id: `span-${value}`, 'aria-pressed': String(now === value), onclick: () => go(page, current(), { span: value }) }, `Last ${text}`)));
}

const since = (data) => (data.source === 'prometheus' ? 'From Prometheus.' : `This scheduler's history begins at ${moment(data.since, true)}; a restart loses it.`);

/** Granted against used; of a card or of all. */
export function memoryChart(id, title, data) {
  if (!data || data.error) return h('p', { class: 'faint' }, data?.error ?? 'Loading…');
  const { grantable, granted, used, idle } = data.series;
  return chart(id, title, [
    ...(grantable ? [{ name: 'grantable', values: grantable, kind: 'line', k: 6 }] : []),
    { name: 'granted', values: granted ?? [], kind: 'area', k: 8 }, { name: 'used', values: used ?? [], kind: 'area', k: 2 },
    ...(idle ? [{ name: 'granted but idle', values: idle, kind: 'line', k: 5 }] : []),
  ], { from: data.from, step: data.step, marks: data.marks, unit: mib, base: 1024 });
}

export function queueCharts(data) {
  if (!data || data.error) return [h('p', {}, data?.error ?? 'Loading…')];
  const { held, waiting } = data.series;
  return [chart('held', 'GPUs held', [{ name: 'held', values: held ?? [], kind: 'area', k: 2 }], { from: data.from, step: data.step, marks: data.marks, unit: gpus }),
    chart('waiting', 'Pods waiting', [{ name: 'waiting', values: waiting ?? [], kind: 'area', k: 1 }], { from: data.from, step: data.step, marks: [], unit: number })];
}

function marks(list) {
  if (!list.length) return h('p', {}, 'No eviction and no fault in that time.');
  return table('', noSpan, 'Evictions, exceeded limits and faults, newest first', [
    ['When', null, '', (mark) => moment(mark.at, true)], ['What', null, '', (mark) => mark.kind],
    ['Card', null, '', (mark) => (mark.card ? h('a', { href: `#/card/${mark.card}` }, mark.card) : '')],
    ['Queue', null, '', (mark) => (mark.queue ? h('a', { href: `#/queue/${encodeURIComponent(mark.queue)}` }, mark.queue) : '')], ['', null, '', (mark) => mark.words],
  ], [...list].reverse().slice(0, 100));
}

export function time(data, { parameters, more }) {
  const waiting = more.waiting;
  const queues = Object.entries(waiting?.series ?? {});
  return ['Time', [spans('time', parameters, data, false), h('p', { id: 'since' }, since(data)), memoryChart('fleet', 'Memory of all cards', data),
    waiting?.error ? h('p', {}, waiting.error) : chart('waiting', 'Pods waiting, by queue', queues.map(([name, values], at) => ({ name, values, kind: 'line', k: at % 9 })), { from: waiting?.from ?? null, step: waiting?.step ?? 1, marks: waiting?.marks, unit: number }),
    h('h2', {}, 'What happened'), marks(data.marks)]];
}

/** One queue. */
export function queue(data, { parameters, more, name }) {
  const row = data.rows.find((one) => one.name === name);
  const bound = (value) => (value === null ? 'no limit' : number(value));
  const facts = row && h('dl', {}, [['Parent', row.parent ?? 'none'], ['Held', number(row.held)], ['Fair share', row.fair === null ? 'its parent is missing' : number(row.fair)], ['Quota', bound(row.quota)], ['Limit', bound(row.limit)],
    ['Wanted', number(row.wanted)], ['Pods', `${number(row.holding)} holding, ${number(row.waiting)} waiting`], ['Priority', String(row.priority)], ['Past use', row.past ? `${(row.past * 100).toFixed(1)} % of the cluster` : ''],
    ...row.products.map((one) => [one.product, `${number(one.held)} ${one.unit} held, quota ${one.quota === null ? 'none' : number(one.quota)}, limit ${one.limit === null ? 'none' : number(one.limit)}`])]
    .filter(([, value]) => value !== '').flatMap(([key, value]) => [h('dt', {}, key), h('dd', {}, value)]));
  return [`Queue ${row?.display || name}`, [row ? facts : h('p', {}, 'There is no such queue.'),
    h('p', {}, h('a', { href: `#/workloads?${query({ queue: name })}` }, 'Its pods'), ' · ', h('a', { id: 'ask-for-more', href: `#/whatif?${query({ queue: name })}` }, 'Who would give way if it asked for more?')),
    spans(`queue/${encodeURIComponent(name)}`, parameters, more.time, true), more.time && !more.time.error ? h('p', {}, since(more.time)) : '', ...queueCharts(more.time)]];
}

/** Asks the scheduler's own engine; nothing is carried out. */
export function whatif(data, { parameters, more }) {
  const value = (key, unset = '') => parameters.get(key) ?? unset;
  const kind = ['memory', 'fraction', 'gpus'].find((one) => parameters.get(one)) ?? 'memory';
  const ask = (event) => {
    event.preventDefault();
    const of = (id) => document.getElementById(id).value.trim();
    const amount = { [of('kind')]: of('amount') };
    location.hash = `#/whatif?${query({ queue: of('of'), ...amount, devices: of('kind') === 'gpus' ? '' : of('devices'), count: of('many'), class: of('class') })}`;
  };
  const field = (id, text, attributes) => h('label', {}, `${text} `, h('input', { id, autocomplete: 'off', ...attributes }));
  const form = h('form', { class: 'tools', id: 'ask-form', onsubmit: ask },
    h('label', {}, 'Queue ', h('select', { id: 'of' }, data.rows.map((row) => h('option', { value: row.name, selected: row.name === value('queue') }, row.display || row.name)))),
    h('label', {}, 'Each pod requests ', h('select', { id: 'kind' }, [['memory', 'MiB of a GPU'], ['fraction', 'part of a GPU'], ['gpus', 'whole GPUs']].map(([key, text]) => h('option', { value: key, selected: key === kind }, text)))),
    field('amount', 'Amount', { value: value(kind), required: true, size: 8, inputmode: 'decimal' }), field('devices', 'Number of GPUs, that much of each', { type: 'number', min: 1, max: 64, value: value('devices', '1') }),
    field('many', 'Pods', { type: 'number', min: 1, max: 1000, value: value('count', '1') }), field('class', 'Priority class', { value: value('class'), size: 12, placeholder: 'default' }), h('button', { id: 'ask-now' }, 'Ask'));
  const answer = more.answer;
  const parts = [h('p', {}, 'The scheduler tries it on a copy of its state, as aliquot simulate does. No pod is placed or evicted.'), form];
  if (answer?.error) parts.push(h('p', { class: 'bad', id: 'verdict' }, answer.error));
  else if (answer) {
    const gone = answer.victims.filter((one) => !one.moves).length;
    const lost = answer.victims.length === 0 ? 'no pod gives way' : `${number(answer.victims.length)} ${answer.victims.length === 1 ? 'pod gives' : 'pods give'} way${gone === answer.victims.length ? '' : `, ${number(answer.victims.length - gone)} of them get another place`}`;
    parts.push(h('p', { id: 'verdict', role: 'status' }, `${number(answer.placed)} of ${number(answer.wanted)} ${answer.wanted === 1 ? 'pod gets' : 'pods get'} a place; ${lost}.`,
      answer.seconds ? ` The last decision comes after ${answer.seconds} s.` : '', answer.searching ? ' A search for room has not finished.' : ''));
    if (answer.why) parts.push(h('p', {}, `The next one would wait: ${answer.why}`));
    if (answer.victims.length) {
      parts.push(h('h2', {}, 'Who would give way'), table('', noSpan, 'In the order of the decisions', [
        ['Pod', null, '', (one) => (one.name ? `${one.namespace}/${one.name}` : '(of a namespace that you may not see)')], ['Queue', null, '', (one) => h('a', { href: `#/queue/${encodeURIComponent(one.queue)}` }, one.queue)],
        ['Why', null, '', (one) => one.cause], ['Then', null, '', (one) => (one.moves ? 'gets another place' : 'waits')]], answer.victims.slice(0, 200)));
    }
    const nodes = Object.entries(answer.nodes ?? {});
    if (nodes.length) parts.push(h('h2', {}, 'Where they go'), table('', noSpan, 'Pods by node', [['Node', null, '', ([node]) => node], ['Pods', null, 'num', ([, count]) => number(count)]], nodes.slice(0, 100)));
  }
  return ['Who would give way?', parts];
}

/** What was granted and not used. */
export function report(data, { parameters }) {
  const by = parameters.get('by') ?? 'queue';
  const hours = parameters.get('hours') ?? '24';
  const price = Number(parameters.get('price')) || 0;
  const choice = (id, text, values, value) => h('label', {}, `${text} `, h('select', { id, onchange: (event) => go('report', current(), { [id]: event.target.value }) }, values.map(([key, words]) => h('option', { value: key, selected: key === value }, words))));
  const name = { queue: (row) => row.queue || '(no queue of this scheduler)', namespace: (row) => row.namespace || '(no breakdown any more)', owner: (row) => [row.namespace, row.owner || '(no breakdown any more)'].filter(Boolean).join(' ') }[by];
  const cost = (milli) => ((milli / 1000) * price).toFixed(2);
  const rows = [...data.rows].sort((a, b) => b.unusedGpuHours - a.unusedGpuHours || b.gpuHours - a.gpuHours);
  const columns = [[{ queue: 'Queue', namespace: 'Namespace', owner: 'Workload' }[by], null, '', name], ...(by === 'owner' ? [['Queue', null, '', (row) => row.queue]] : []),
    ['GPU-hours', null, 'num', (row) => gpus(row.gpuHours)], ['Unused', null, 'num', (row) => gpus(row.unusedGpuHours)], ['MiB-hours', null, 'num', (row) => number(row.grantedMibHours)], ['Unused', null, 'num', (row) => number(row.unusedMibHours)],
    ['Unused part', null, 'num', (row) => `${row.grantedMibHours ? ((row.unusedMibHours / row.grantedMibHours) * 100).toFixed(1) : '0.0'} %`], ['Longest idle', null, 'num', (row) => `${number(row.longestIdleMinutes)} min`], ...(price ? [['Cost', null, 'num', (row) => cost(row.gpuHours)], ['Of it unused', null, 'num', (row) => cost(row.unusedGpuHours)]] : [])];
  const cards = data.cards && h('p', { id: 'idle' }, `Cards: ${gpus(data.cards.gpuHours)} GPU-hours, of which ${gpus(data.cards.freeGpuHours)} were granted to no pod.`);
  const known = data.from === null ? 'There is no data for that time yet.' : `From ${moment(data.from, true)} until ${moment(data.until, true)}; the scheduler recorded ${number(Math.round(data.seconds / 36) / 100)} hours. Its history begins at ${moment(data.since, true)} and has at most 14 days.`;
  return ['Report', [h('form', { class: 'tools', onsubmit: (event) => event.preventDefault() }, choice('by', 'By', [['queue', 'queue'], ['namespace', 'namespace'], ['owner', 'workload']], by), choice('hours', 'Last', [['1', 'hour'], ['24', 'day'], ['168', 'week'], ['336', '14 days']], hours),
    h('label', {}, 'Price of a GPU-hour ', h('input', { id: 'price', type: 'number', min: 0, step: 'any', value: price || '', onchange: (event) => go('report', current(), { price: event.target.value }) }))),
  h('p', { id: 'known' }, known), cards, rows.length ? table('', noSpan, 'Memory granted, and the part of it that was not in use', columns, rows.slice(0, 500)) : h('p', {}, 'Nothing was granted in that time.'),
  data.hidden && h('p', {}, `Namespaces that you may not list have ${gpus(data.hidden.gpuHours)} GPU-hours, ${gpus(data.hidden.unusedGpuHours)} of them unused.`),
  data.ownersFrom && by !== 'queue' && h('p', {}, `Before ${moment(data.ownersFrom, true)} there is no breakdown by workload.`)].filter(Boolean)];
}
