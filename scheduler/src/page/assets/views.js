// What each page shows of the server's answer.

import { age, bar, h, memory, number } from './dom.js';
import { s } from './chart.js';
import { fleet, fleetAfter, fleetData } from './fleet.js';
import { pager, query, ROWS, spanOf, table, tools } from './list.js';
import { memoryChart, queue, report, timeline, time, timeOf, whatif } from './pages.js';

const tile = (count, words, href) => h('li', {}, h('b', {}, count), href ? h('a', { href }, words) : h('span', {}, words));
const cardLink = (card) => h('a', { href: `#/card/${card.uuid}`, id: `card-${card.uuid}` }, `${card.node} / ${card.index}`);
const amount = (gpus) => (gpus === null ? 'no limit' : number(gpus));
// Of one card exactly; `memory` rounds sums.
const mib = (value) => `${number(value)} MiB`;
const partial = 'Pods of namespaces that you may not list are left out.';

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

const plain = (columns) => columns.map(([title, , kind, of]) => [title, null, kind, of]);
const noSpan = spanOf(new URLSearchParams());

function overview(data) {
  const { cards, pods } = data;
  const tiles = [];
  if (cards) {
    tiles.push(tile(number(data.nodes), 'nodes with an agent', '#/health'), tile(number(cards.cards), 'cards', '#/cards'),
      tile(number(cards.free), 'cards free', '#/cards?state=free'), tile(number(cards.shares), 'shares', '#/cards?state=shared'),
      tile(number(data.troubled), 'cards with problems', '#/cards?state=trouble'));
  }
  tiles.push(tile(number(pods.waiting), 'pods waiting', '#/pods?state=waiting'), tile(number(pods.starting), 'pods starting', '#/pods?state=starting'));
  if (data.queues !== null) tiles.push(tile(number(data.queues), 'queues', '#/queues'));
  const products = cards && table('', noSpan, 'Memory by product', [
    ['Product', null, '', (row) => row.product], ['Cards', null, 'num', (row) => number(row.cards)], ['Free', null, 'num', (row) => number(row.free)],
    ['Memory', null, '', (row) => bar(row.granted, row.used, row.grantable)],
    ['Granted', null, 'num', (row) => `${memory(row.granted)} of ${memory(row.grantable)}`], ['Used', null, 'num', (row) => memory(row.used)],
  ], data.products);
  const troubles = cards && data.troubles.length && [h('h2', {}, 'Cards with problems'), table('', noSpan, 'The first ones', plain(cardColumns), data.troubles)];
  return ['Overview', [h('ul', { class: 'tiles' }, tiles), products ? h('h2', {}, 'Products') : h('p', {}, 'Cards are left out: you may not list gpunodes.aliquot.dev.'),
    products, troubles, pods.whole ? null : h('p', {}, partial)].flat().filter(Boolean)];
}

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
    ['Limit', null, 'num', (grant) => mib(grant.memory)], ['Used', null, 'num', (grant) => (grant.used === null ? '?' : mib(grant.used))],
    ['Compute', null, 'num', (grant) => `${grant.compute} %`], ['Fence', null, '', (grant) => grant.fence ?? 'none yet'],
    ['State', null, '', (grant) => grant.phase], ['Complaint', null, 'bad', (grant) => grant.complaint],
  ], data.grants);
  const strangers = data.strangers.length && [h('h2', {}, 'Processes without a grant'), table('', noSpan, 'On the node', [
    ['Process', null, '', (one) => one.command], ['PID', null, 'num', (one) => String(one.pid)], ['Memory', null, 'num', (one) => mib(one.memoryMib)]], data.strangers)];
  return [`Card ${data.index} of ${data.node}`, [facts([
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
  return ['Queues', [h('p', {}, h('a', { href: '#/whatif' }, 'Who would give way if a queue asked for more?')), ordered.length ? table('', noSpan, 'GPUs, by queue; each with everything below it', [
    ['Queue', null, 'nowrap', name], ['Allocated, limits, requested', null, '', (row) => ruler(row, most)],
    ['Held', null, 'num', (row) => number(row.held)], ['Fair share', null, 'num', (row) => (row.fair === null ? 'parent missing' : number(row.fair))],
    ['Quota', null, 'num', (row) => amount(row.quota)], ['Limit', null, 'num', (row) => amount(row.limit)], ['Wanted', null, 'num', (row) => number(row.wanted)],
    ['Past use', null, 'num', (row) => (row.past ? `${(row.past * 100).toFixed(1)} %` : '')],
    ['Pods holding', null, 'num', (row) => number(row.holding)], ['Pods waiting', null, 'num', (row) => h('a', { href: `#/pods?${query({ queue: row.name })}` }, number(row.waiting))], ['Priority', null, 'num', (row) => String(row.priority)],
  ], ordered) : h('p', {}, 'There is no queue.'),
  h('ul', { class: 'legend' }, [['has', 'allocated'], ['wants', 'requested in addition'], ['quota', 'quota'], ['fair', 'fair share now'], ['limit', 'limit']].map(([kind, text]) => h('li', {}, h('i', { class: `swatch ${kind}` }), text)))]];
}

function pods(data, { span }) {
  return ['Pods that do not run yet', [tools('pods', span, [['', 'all'], ['waiting', 'waiting for a place'], ['starting', 'bound, starting']]),
    table('pods', span, 'Reason, and position in the queue: by priority, then by age', [
      ['Pod', 'name', '', (pod) => podLink(pod.uid, `${pod.namespace}/${pod.name}`)],
      ['Queue', 'queue', '', (pod) => h('a', { href: `#/pods?${query({ queue: pod.queue })}` }, pod.queue)],
      ['Position', 'place', 'num', (pod) => (pod.place ? number(pod.place) : 'placed')], ['Requests', null, '', (pod) => pod.asks],
      ['Age', 'age', 'num', (pod) => age(pod.created)], ['Why', null, '', (pod) => pod.why || 'the scheduler has not tried it yet'],
    ], data.rows), pager('pods', span, data), data.whole ? null : h('p', {}, partial)].filter(Boolean)];
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
    case 'pods': return { page, data: list('pods'), view: pods, span };
    case 'pod': return { page: 'pods', uid: id, data: `api/timeline/${at(id)}?${query({ pod: parameters.get('in') ?? '' })}`, view: timeline, span,
      more: (body) => ({ ...(body.waits ? { pod: `api/pods/${at(id)}` } : {}), ...(body.range ? { time: timeOf('pod', `${body.namespace}/${body.name}`, new URLSearchParams('span=7d')) } : {}) }) };
    case 'time': return { page, data: timeOf('fleet', '', parameters), view: time, span, parameters, more: () => ({ waiting: timeOf('waiting', '', parameters) }) };
    case 'report': return { page, data: `api/report?${query({ by: parameters.get('by') ?? 'queue', hours: parameters.get('hours') ?? '24' })}`, view: report, span, parameters };
    case 'health': return { page, data: 'api/health', view: health, span };
    default: return null;
  }
}
