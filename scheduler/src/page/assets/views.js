// What each page shows of the server's answer.

import { age, bar, copy, h, lacks, number } from './dom.js';
import { s } from './chart.js';
import { fleet, fleetAfter, fleetData } from './fleet.js';
import { pager, query, ROWS, spanOf, table, tools } from './list.js';
import { overview } from './now.js';
import { memoryChart, queue, report, time, timeOf, whatif } from './pages.js';
import { pod } from './pod.js';

const cardLink = (card) => h('a', { href: `#/card/${card.uuid}`, id: `card-${card.uuid}` }, `${card.node} / ${card.index}`);
const amount = (gpus) => (gpus === null ? 'no limit' : number(gpus));
const mib = (value) => `${number(value)} MiB`;
const partial = (data) => (data.whole ? null : lacks(['pods in all namespaces'], 'the pods of other namespaces are left out'));

const cardColumns = [
  ['Card', 'node', '', cardLink],
  ['Product', 'product', '', (card) => card.product],
  ['Mode', 'mode', '', (card) => card.mode || 'idle'],
  ['Memory', null, '', (card) => bar(card.granted, card.used, card.grantable)],
  ['Granted', 'granted', 'num', (card) => `${mib(card.granted)} of ${mib(card.grantable)}`],
  ['Used', 'used', 'num', (card) => mib(card.used)],
  ['Shares', 'shares', 'num', (card) => number(card.shares)],
  ['Problem', null, 'bad', (card) => card.trouble],
];

const noSpan = spanOf(new URLSearchParams());

function cards(data, { span }) {
  return ['Cards', [tools('cards', span, [['', 'all cards'], ['free', 'free'], ['shared', 'with shares'], ['trouble', 'with problems']]),
    table('cards', span, 'Memory granted and used, by card', cardColumns, data.rows), pager('cards', span, data)]];
}

function facts(pairs) {
  const shown = pairs.filter(([, value]) => value !== '' && value !== null && value !== undefined);
  return h('dl', {}, shown.flatMap(([name, value]) => [h('dt', {}, name), h('dd', {}, value)]));
}

const podLink = (uid, name) => h('a', { href: `#/pod/${uid}?${query({ in: name })}`, id: `pod-${uid}` }, name);

function card(data, { more }) {
  const shares = table('', noSpan, 'Shares on this card', [
    ['Pod', null, '', (grant) => (grant.pod ? podLink(grant.uid, grant.pod) : '(of a namespace that you may not see)')], ['Queue', null, '', (grant) => grant.queue], ['Container', null, '', (grant) => grant.container],
    ['Memory', null, '', (grant) => bar(grant.memory, grant.used ?? 0, data.grantable)],
    ['Limit', null, 'num', (grant) => mib(grant.memory)], ['Used', null, 'num', (grant) => (grant.used === null ? '?' : mib(grant.used))], ['SM', null, 'num', (grant) => (grant.sm === null ? '' : `${grant.sm} %`)],
    ['Compute', null, 'num', (grant) => `${grant.compute} %`], ['Fence', null, '', (grant) => grant.fence ?? 'none yet'],
    ['State', null, '', (grant) => grant.phase], ['Complaint', null, 'bad', (grant) => grant.complaint],
  ], data.grants);
  const strangers = data.strangers.length && [h('h2', {}, 'Processes without a grant'), table('', noSpan, 'On the node', [
    ['Process', null, '', (one) => one.command], ['PID', null, 'num', (one) => String(one.pid)], ['Memory', null, 'num', (one) => mib(one.memoryMib)]], data.strangers)];
  const plain = /^[A-Za-z0-9.-]+$/.test(data.node);
  return [`Card ${data.index} of ${data.node}`, [plain ? h('p', {}, copy(`kubectl aliquot ${data.cordoned ? 'uncordon' : 'cordon'} ${data.node}/${data.index}`, 'copy-card')) : null, facts([
    ['UUID', data.uuid], ['Product', data.product], ['Mode', data.mode || 'idle'], ['Can switch to', data.switchable.join(', ')],
    ['Memory', `${mib(data.total)}, of it ${mib(data.grantable)} grantable, ${mib(data.granted)} granted, ${mib(data.used)} used`],
    ['Health', data.health + (data.healthReason ? `: ${data.healthReason}` : '')], ['Ready', data.ready ? 'yes' : 'no'], ['Cordoned', data.cordoned ? 'yes' : 'no'],
    ['MPS server', data.mps], ['Compute capability', data.computeCapability], ['PCI', data.pci], ['NUMA node', data.numa === null ? '' : String(data.numa)],
    ['NVLink', data.nvlink.join(', ')], ['Its agent', data.heard ? 'is connected' : 'is not connected: the numbers are the last that it wrote'],
  ]), h('h2', {}, 'Shares'), data.grants.length ? shares : h('p', {}, 'No pod holds a share of it.'), strangers,
  h('h2', {}, 'The last hour'), memoryChart('card', 'Memory of this card', more?.time)].flat().filter(Boolean)];
}

/** A queue's allocation and demand as a bar, its quota, fair share and limit as marks, all rows on one scale. */
function ruler(row, most) {
  const x = (value) => Math.round((Math.min(value, most) / most) * 318) + 1;
  const mark = (value, kind) => (value === null || value === undefined ? null : s('line', { class: kind, x1: x(value), x2: x(value), y1: 0, y2: 22 }));
  const words = [`allocated ${number(row.held)}`, row.wanted ? `requested ${number(row.wanted)} more` : 'no more requested', `fair share ${row.fair === null ? 'not known' : number(row.fair)}`, `quota ${amount(row.quota)}`, `limit ${amount(row.limit)}`].join(', ');
  return s('svg', { class: 'ruler', viewBox: '0 0 320 22', role: 'img', 'aria-label': words }, s('title', {}, words),
    s('rect', { class: 'all', x: 0.5, y: 4.5, width: 319, height: 13 }), s('rect', { class: 'wants', x: x(row.held), y: 5, width: Math.max(0, x(row.held + row.wanted) - x(row.held)), height: 12 }),
    s('rect', { class: 'has', x: 1, y: 5, width: Math.max(0, x(row.held) - 1), height: 12 }), mark(row.quota, 'quota'), mark(row.fair, 'fair'), row.limit !== null && row.limit <= most ? mark(row.limit, 'limit') : null);
}

function queues(data) {
  const children = new Map();
  const names = new Set(data.rows.map((row) => row.name));
  for (const row of data.rows) {
    const parent = names.has(row.parent) ? row.parent : '';
    children.set(parent, [...(children.get(parent) ?? []), row]);
  }
  const ordered = [];
  const walk = (parent, level) => (children.get(parent) ?? []).forEach((row) => {
    ordered.push({ ...row, level });
    if (level < 32) walk(row.name, level + 1);
  });
  walk('', 1);
  const most = Math.max(1, ...data.rows.map((row) => Math.max(row.held + row.wanted, row.fair ?? 0, row.quota ?? 0)));
  const name = (row) => {
    const link = h('a', { href: `#/queue/${encodeURIComponent(row.name)}`, id: `queue-${row.name}` }, row.display || row.name);
    const indent = h('span', { class: 'tree', width: `${(row.level - 1) * 24}px` });
    return [indent, link, h('span', { class: 'level nowrap' }, row.level > 1 ? ` in ${row.parent}` : '')];
  };
  return ['Queues', [h('p', {}, h('a', { href: '#/whatif' }, 'Who would give way if a queue asked for more?')), ordered.length ? table('', noSpan, 'GPUs and pods, by queue; each with everything below it', [
    ['Queue', null, 'nowrap', name], ['Allocated, limits, requested', null, '', (row) => ruler(row, most)],
    ['Held', null, 'num', (row) => number(row.held)], ['Fair share', null, 'num', (row) => (row.fair === null ? 'parent missing' : number(row.fair))],
    ['Limit', null, 'num', (row) => amount(row.limit)], ['Quota', null, 'num', (row) => amount(row.quota)], ['Wanted', null, 'num', (row) => number(row.wanted)],
    ['Waiting', null, 'num', (row) => h('a', { href: `#/workloads?${query({ state: 'waiting', queue: row.name })}` }, number(row.waiting))], ['Holding', null, 'num', (row) => number(row.holding)],
    ...(ordered.some((row) => row.past) ? [['Past use', null, 'num', (row) => `${(row.past * 100).toFixed(1)} %`]] : []), ['Priority', null, 'num', (row) => String(row.priority)],
  ], ordered) : h('p', {}, 'There is no queue.'),
  h('ul', { class: 'legend' }, [['has', 'allocated'], ['wants', 'requested in addition'], ['quota', 'quota'], ['fair', 'fair share now'], ['limit', 'limit']].map(([kind, text]) => h('li', {}, h('i', { class: `swatch ${kind}` }), text)))]];
}

const states = { waiting: 'waits', starting: 'starts', running: 'runs' };

/** What a pod's row says: what is wrong, or why it waits. */
const says = (row) => (row.trouble ? h('span', { class: 'bad' }, row.trouble) : row.state === 'running' ? (row.owner === `Pod/${row.name}` ? '' : row.owner) : row.why || 'the scheduler has not tried it yet');

const podColumns = [
  ['Pod', 'name', '', (row) => podLink(row.uid, `${row.namespace}/${row.name}`)],
  ['State', null, 'nowrap', (row) => h('span', { class: `state ${row.trouble ? 'trouble' : row.state}` }, row.trouble ? 'broken' : states[row.state] + (row.place ? `, position ${number(row.place)}` : ''))],
  ['Queue', 'queue', '', (row) => (row.queue ? h('a', { href: `#/workloads?${query({ queue: row.queue })}` }, row.queue) : '')],
  ['Node', 'node', 'nowrap extra', (row) => (row.node ? `${row.node}${row.cards ? ` / ${row.cards.join(', ')}` : ''}` : '')],
  ['Granted', 'granted', 'num', (row) => (row.granted === undefined ? row.asks : mib(row.granted))],
  ['Used', 'used', 'num extra', (row) => (row.used === undefined || row.used === null ? '' : mib(row.used))],
  ['Waits for', 'age', 'num extra', (row) => (row.created === undefined ? '' : age(row.created))],
  ['Why, or made by', null, 'wide', says],
];
const plain = (columns) => columns.map(([title, , kind, of]) => [title, null, kind, of]);

function workloads(data, { span }) {
  const choices = [['', 'all'], ['waiting', 'that wait'], ['starting', 'that start'], ['running', 'that run'], ['trouble', 'with problems']];
  return ['Workloads', [partial(data), tools('workloads', span, choices, data.namespaces), table('workloads', span, 'Pods with GPUs; those that wait come first, in the order of their queues', podColumns, data.rows), pager('workloads', span, data)].filter(Boolean)];
}

/** Everything with a text in it: pods, cards with their nodes, queues. */
function search(data, { span, more }) {
  const words = span.filter.toLowerCase();
  const queues = (more.queues?.rows ?? []).filter((row) => `${row.name} ${row.display ?? ''}`.toLowerCase().includes(words));
  const found = (title, total, page, content) => [h('h2', {}, `${title}: ${number(total)}`), total ? content : null, total > 20 && page ? h('p', {}, h('a', { href: `#/${page}?${query({ filter: span.filter })}` }, 'All of them')) : null];
  const lists = [...found('Pods', data.total, 'workloads', table('', noSpan, 'Pods', plain(podColumns), data.rows)),
    ...(more.cards?.error ? [lacks(['gpunodes.aliquot.dev'], 'cards and nodes are not searched')] : found('Cards', more.cards?.total ?? 0, 'cards', table('', noSpan, 'Cards', plain(cardColumns), more.cards?.rows ?? []))),
    ...(more.queues?.error ? [lacks(['queues.scheduling.run.ai'], 'queues are not searched')] : found('Queues', queues.length, '', h('ul', {}, queues.slice(0, 50).map((row) => h('li', {}, h('a', { href: `#/queue/${encodeURIComponent(row.name)}` }, row.display || row.name))))))];
  return [`Search: ${span.filter}`, [partial(data), ...lists].filter(Boolean)];
}

function health(data) {
  const odd = data.odd?.length && [h('h2', {}, 'Nodes that offer nothing'), table('', noSpan, 'And why', [
    ['Node', null, '', (row) => row.node], ['Why', null, 'bad', (row) => row.why]], data.odd)];
  return ['Health', [facts([
    ['This scheduler', data.leading ? 'decides' : 'stands by: another replica decides'], ['Version', data.version],
    ['Not listed yet', data.missing.join(', ') || 'nothing: everything is listed'],
    ['Remembers', `what cards, queues and tenants had since ${new Date(data.remembers.since).toLocaleString('en-GB')}, in ${number(Math.round(data.remembers.bytes / 1024))} KiB`],
    ['Connected agents', data.nodes === null ? number(data.agents) : `${number(data.agents)} of ${number(data.nodes)} nodes`],
  ]), odd || h('p', {}, data.nodes === null ? 'Nodes are left out: you may not list gpunodes.aliquot.dev.' : 'Every node offers its cards.')].flat()];
}

/** Address → where its data is, and how it is shown. `more`: what is asked for beside it. */
export function route(hash) {
  const [path, text] = hash.replace(/^#\/?/, '').split('?');
  const [page, id, index] = path.split('/').map(decodeURIComponent);
  const parameters = new URLSearchParams(text ?? '');
  const span = spanOf(parameters);
  const list = (name) => `api/${name}?${query({ ...span, count: ROWS })}`;
  const at = encodeURIComponent;
  switch (page) {
    case '': return { page: '', data: 'api/overview', view: overview, span };
    case 'fleet': return { page, data: fleetData, view: fleet, after: fleetAfter, instant: true, span, parameters };
    case 'cards': return { page, data: list('cards'), view: cards, span };
    case 'card': return { page: 'cards', data: index === undefined ? `api/cards/${at(id)}` : `api/cards/${at(id)}/${at(index)}`, view: card, span,
      more: (body) => ({ time: timeOf('card', body.uuid, parameters) }) };
    case 'queues': return { page, data: 'api/queues', view: queues, span };
    case 'queue': return { page: 'queues', data: 'api/queues', view: queue, name: id, span, parameters, more: () => ({ time: timeOf('queue', id, parameters) }) };
    case 'whatif': return { page: 'queues', data: 'api/queues', view: whatif, span, parameters, once: true,
      more: () => (['memory', 'fraction', 'gpus'].some((key) => parameters.get(key)) ? { answer: `api/whatif?${parameters}` } : {}) };
    case 'workloads': return { page, data: list('pods'), view: workloads, span };
    case 'search': return { page, data: `api/pods?${query({ filter: span.filter, count: 20 })}`, view: search, name: span.filter, span,
      more: () => ({ cards: `api/cards?${query({ filter: span.filter, count: 20 })}`, queues: 'api/queues' }) };
    case 'pod': return { page: 'workloads', uid: id, parameters, instant: true, data: `api/timeline/${at(id)}?${query({ pod: parameters.get('in') ?? '' })}`, view: pod, span,
      more: (body) => ({ ...(body.waits ? { pod: `api/pods/${at(id)}` } : {}), ...(body.waits && !body.node && parameters.get('advice') ? { advice: { once: `api/advice/${at(id)}?${query({ time: parameters.get('advice') })}` } } : {}), ...(body.range ? { time: timeOf('pod', `${body.namespace}/${body.name}`, new URLSearchParams('span=7d')) } : {}) }) };
    case 'time': return { page, data: timeOf('fleet', '', parameters), view: time, span, parameters, more: () => ({ waiting: timeOf('waiting', '', parameters) }) };
    case 'report': return { page, data: `api/report?${query({ by: parameters.get('by') ?? 'queue', hours: parameters.get('hours') ?? '24' })}`, view: report, span, parameters };
    case 'health': return { page, data: 'api/health', view: health, span };
    default: return null;
  }
}
