// What each page shows of the server's answer.

import { age, bar, h, memory, number } from './dom.js';
import { pager, query, ROWS, spanOf, table, tools } from './list.js';

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
  ['Trouble', null, 'bad', (card) => card.trouble],
];

const plain = (columns) => columns.map(([title, , kind, of]) => [title, null, kind, of]);
const noSpan = spanOf(new URLSearchParams());

function overview(data) {
  const { cards, pods } = data;
  const tiles = [];
  if (cards) {
    tiles.push(tile(number(data.nodes), 'nodes with an agent', '#/health'), tile(number(cards.cards), 'cards', '#/cards'),
      tile(number(cards.free), 'cards free', '#/cards?state=free'), tile(number(cards.shares), 'shares', '#/cards?state=shared'),
      tile(number(data.troubled), 'cards with trouble', '#/cards?state=trouble'));
  }
  tiles.push(tile(number(pods.waiting), 'pods waiting', '#/pods?state=waiting'), tile(number(pods.starting), 'pods starting', '#/pods?state=starting'));
  if (data.queues !== null) tiles.push(tile(number(data.queues), 'queues', '#/queues'));
  const products = cards && table('', noSpan, 'Memory by product', [
    ['Product', null, '', (row) => row.product], ['Cards', null, 'num', (row) => number(row.cards)], ['Free', null, 'num', (row) => number(row.free)],
    ['Memory', null, '', (row) => bar(row.granted, row.used, row.grantable)],
    ['Granted', null, 'num', (row) => `${memory(row.granted)} of ${memory(row.grantable)}`], ['Used', null, 'num', (row) => memory(row.used)],
  ], data.products);
  const troubles = cards && data.troubles.length && [h('h2', {}, 'Cards with trouble'), table('', noSpan, 'The first of them', plain(cardColumns), data.troubles)];
  return ['Overview', [h('ul', { class: 'tiles' }, tiles), products ? h('h2', {}, 'Products') : h('p', {}, 'Cards are left out: you may not list gpunodes.aliquot.dev.'),
    products, troubles, pods.whole ? null : h('p', {}, partial)].flat().filter(Boolean)];
}

function cards(data, { span }) {
  return ['Cards', [tools('cards', span, [['', 'all cards'], ['free', 'free'], ['shared', 'with shares'], ['trouble', 'with trouble']]),
    table('cards', span, 'Memory granted and used, by card', cardColumns, data.rows), pager('cards', span, data)]];
}

function facts(pairs) {
  const shown = pairs.filter(([, value]) => value !== '' && value !== null && value !== undefined);
  return h('dl', {}, shown.flatMap(([name, value]) => [h('dt', {}, name), h('dd', {}, value)]));
}

function card(data) {
  const shares = table('', noSpan, 'Shares on this card', [
    ['Pod', null, '', (grant) => grant.pod || '(of a namespace that you may not see)'], ['Container', null, '', (grant) => grant.container],
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
    ['NVLink', data.nvlink.join(', ')], ['Its agent', data.heard ? 'is heard' : 'is not heard: numbers are the last that it wrote'],
  ]), h('h2', {}, 'Shares'), data.grants.length ? shares : h('p', {}, 'Nobody holds a share of it.'), strangers].flat().filter(Boolean)];
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
  const name = (row) => {
    const link = h('a', { href: `#/pods?${query({ queue: row.name })}`, id: `queue-${row.name}` }, row.display || row.name);
    const indent = h('span', { class: 'tree', width: `${(row.level - 1) * 24}px` });
    return [indent, link, h('span', { class: 'level' }, row.level > 1 ? ` in ${row.parent}` : '')];
  };
  return ['Queues', [ordered.length ? table('', noSpan, 'GPUs, by queue; each with everything below it', [
    ['Queue', null, '', name], ['Held and wanted', null, '', (row) => bar(row.held + row.wanted, row.held, Math.max(row.fair ?? 0, row.held + row.wanted, row.quota ?? 0), ['held or wanted', 'held'])],
    ['Held', null, 'num', (row) => number(row.held)], ['Fair share', null, 'num', (row) => (row.fair === null ? 'parent missing' : number(row.fair))],
    ['Quota', null, 'num', (row) => amount(row.quota)], ['Limit', null, 'num', (row) => amount(row.limit)], ['Wanted', null, 'num', (row) => number(row.wanted)],
    ['Past use', null, 'num', (row) => (row.past ? `${(row.past * 100).toFixed(1)} %` : '')],
    ['Pods holding', null, 'num', (row) => number(row.holding)], ['Pods waiting', null, 'num', (row) => number(row.waiting)], ['Priority', null, 'num', (row) => String(row.priority)],
  ], ordered) : h('p', {}, 'There is no queue.')]];
}

function pods(data, { span }) {
  return ['Pods that do not run yet', [tools('pods', span, [['', 'all'], ['waiting', 'waiting for a place'], ['starting', 'bound, starting']]),
    table('pods', span, 'Why, and their place in the queue: by priority, then by age', [
      ['Pod', 'name', '', (pod) => h('a', { href: `#/pod/${pod.uid}`, id: `pod-${pod.uid}` }, `${pod.namespace}/${pod.name}`)],
      ['Queue', 'queue', '', (pod) => h('a', { href: `#/pods?${query({ queue: pod.queue })}` }, pod.queue)],
      ['Place', 'place', 'num', (pod) => (pod.place ? number(pod.place) : 'placed')], ['Asks for', null, '', (pod) => pod.asks],
      ['Age', 'age', 'num', (pod) => age(pod.created)], ['Why', null, '', (pod) => pod.why || 'the scheduler has not looked at it yet'],
    ], data.rows), pager('pods', span, data), data.whole ? null : h('p', {}, partial)].filter(Boolean)];
}

function pod(data) {
  return [`${data.namespace}/${data.name}`, [facts([
    ['Queue', h('a', { href: `#/pods?${query({ queue: data.queue })}` }, data.queue)], ['Asks for', data.asks], ['Priority', `${data.priority} ${data.class}`],
    ['Place in the queue', data.place ? number(data.place) : 'none: it has a node'], ['Node', data.node], ['Age', age(data.created)],
  ]), h('h2', {}, 'Why it does not run'), h('pre', {}, (data.explain ? data.why.split('\n')[0] : data.why) || 'The scheduler has not looked at it yet.'),
  data.explain && h('h2', {}, 'Node by node'), data.explain && h('pre', {}, data.explain)].filter(Boolean)];
}

function health(data) {
  const odd = data.odd?.length && [h('h2', {}, 'Nodes that offer nothing'), table('', noSpan, 'And why', [
    ['Node', null, '', (row) => row.node], ['Why', null, 'bad', (row) => row.why]], data.odd)];
  return ['Health', [facts([
    ['This scheduler', data.leading ? 'decides' : 'stands by: another replica decides'], ['Version', data.version],
    ['Still to be listed', data.missing.join(', ') || 'nothing: it knows everything'],
    ['Agents heard', data.nodes === null ? number(data.agents) : `${number(data.agents)} of ${number(data.nodes)} nodes`],
  ]), odd || h('p', {}, data.nodes === null ? 'Nodes are left out: you may not list gpunodes.aliquot.dev.' : 'Every node offers its cards.')].flat()];
}

/** Address → where its data is, and how it is shown. */
export function route(hash) {
  const [path, text] = hash.replace(/^#\/?/, '').split('?');
  const [page, id] = path.split('/');
  const span = spanOf(new URLSearchParams(text ?? ''));
  const list = (name) => `api/${name}?${query({ ...span, count: ROWS })}`;
  switch (page) {
    case '': return { page: '', data: 'api/overview', view: overview, span };
    case 'cards': return { page, data: list('cards'), view: cards, span };
    case 'card': return { page: 'cards', data: `api/cards/${encodeURIComponent(id)}`, view: card, span };
    case 'queues': return { page, data: 'api/queues', view: queues, span };
    case 'pods': return { page, data: list('pods'), view: pods, span };
    case 'pod': return { page: 'pods', data: `api/pods/${encodeURIComponent(id)}`, view: pod, span };
    case 'health': return { page, data: 'api/health', view: health, span };
    default: return null;
  }
}
