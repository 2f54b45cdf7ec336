// The first page: what is wrong, what changed, how full everything is; for a tenant, their home.

import { bar, copy, h, lacks, memory, number } from './dom.js';
import { moment, s } from './chart.js';
import { query, spanOf, table } from './list.js';

const noSpan = spanOf(new URLSearchParams());
const percent = (part, all) => `${Math.round((part / Math.max(1, all)) * 100)} %`;
const of = (value, all) => `${Math.min(100, (value / Math.max(1, all)) * 100).toFixed(2)}%`;
const plural = (count, one, many) => `${number(count)} ${count === 1 ? one : many}`;
const podLink = ({ uid, name }) => h('a', { href: `#/pod/${encodeURIComponent(uid)}?${query({ in: name })}` }, name);
const panel = (id, title, width, ...parts) => h('section', { class: `panel ${width}`, 'aria-labelledby': `${id}-title` }, h('h2', { id: `${id}-title` }, title), ...parts);

/** Who suffers: the pods that the reader may see by name, and how many more. */
function victims(problem) {
  const named = problem.pods.flatMap((pod, at) => [at ? ', ' : '', podLink(pod)]);
  const others = problem.hurt - problem.pods.length;
  if (!problem.hurt) return null;
  const more = others ? `${named.length ? ' and ' : ''}${number(others)}${named.length ? ' more' : others === 1 ? ' pod' : ' pods'}` : '';
  return h('span', { class: 'hurt' }, ...named, more);
}

/** What is wrong: a row for each problem, with a command to copy. */
function problems({ rows, left }, pods) {
  if (!rows.length) {
    return h('p', { id: 'fine' }, `Nothing is wrong. ${plural(pods.waiting, 'pod waits', 'pods wait')}, ${plural(pods.starting, 'starts', 'start')}.`);
  }
  const row = (problem, at) => h('li', { class: problem.level },
    h('span', { class: 'sign', role: 'img', 'aria-label': problem.level === 'bad' ? 'Broken' : 'Attention' }, problem.level === 'bad' ? '●' : '▲'),
    h('div', {}, h('a', { class: 'what', href: problem.link }, problem.what), problem.detail ? `: ${problem.detail}` : '', ' ', victims(problem)),
    problem.command ? copy(problem.command, `copy-${at}`) : h('span', {}));
  return [h('ul', { class: 'problems' }, rows.map(row)), left ? h('p', { class: 'faint' }, `${plural(left, 'more problem is', 'more problems are')} not shown.`) : null].filter(Boolean);
}

/** One line of a panel: a name, a bar, a figure. */
const line = (name, picture, figure) => h('div', { class: 'line' }, h('span', {}, name), picture, h('span', { class: 'num' }, figure));

/** A bar of one part; its figure stands beside it. */
const part = (value, all, kind) => h('span', { class: `gauge ${kind}`, 'aria-hidden': 'true' }, h('i', { width: of(value, all) }));

function capacity({ cards, nodes, largest, busy }) {
  const sum = (value) => `${percent(value, cards.grantable)} · ${memory(value)}`;
  return [line('Granted', part(cards.granted, cards.grantable, 'granted'), sum(cards.granted)),
    line('Used', part(cards.used, cards.grantable, 'used'), sum(cards.used)),
    line('SM busy', part(busy ?? 0, 100, 'count'), busy === null ? 'not known' : `${busy} %`),
    line('Idle grants', part(cards.idle, cards.grantable, 'idle'), sum(cards.idle)),
    h('p', { class: 'faint' }, h('a', { href: '#/cards' }, plural(cards.cards, 'card', 'cards')), ' on ', h('a', { href: '#/health' }, plural(nodes, 'node', 'nodes')), ', ',
      h('a', { href: '#/cards?state=free' }, `${number(cards.free)} free`), largest.free ? `. Largest free part: ${memory(largest.free)} on ${plural(largest.cards, 'card', 'cards')} (${largest.node})` : '. No card has room', '. ',
      h('a', { href: '#/report' }, 'Who leaves grants idle?'))];
}

/** What a queue holds, and what its pods wait for, against fair share and limit. */
export function queueGauge(row, most) {
  const x = (value) => Math.min(100, (value / most) * 100);
  const mark = (value, kind) => (value === null || value > most ? null : s('line', { class: kind, x1: `${x(value)}%`, x2: `${x(value)}%`, y1: 0, y2: 18 }));
  const words = queueWords(row);
  return s('svg', { class: 'queue-gauge', role: 'img', 'aria-label': `${row.name}: ${words}` }, s('title', {}, words),
    s('rect', { class: 'all', x: 0, y: 3, width: '100%', height: 12 }), s('rect', { class: 'has', x: 0, y: 3, width: `${x(row.held)}%`, height: 12 }),
    s('rect', { class: 'wants', x: `${x(row.held)}%`, y: 3, width: `${x(row.held + row.wanted) - x(row.held)}%`, height: 12 }), mark(row.fair, 'fair'), mark(row.limit, 'limit'));
}

const gpus = (value) => number(Math.round(value * 10) / 10);

function queueWords(row) {
  return [`${gpus(row.held)} GPUs used`, row.fair === null ? '' : `fair share ${gpus(row.fair)}`, row.limit === null ? 'no limit' : `limit ${gpus(row.limit)}`, row.waiting ? plural(row.waiting, 'pod waits', 'pods wait') : ''].filter(Boolean).join(', ');
}

function queues({ busiest, queues: total }) {
  const most = Math.max(1, ...busiest.map((row) => Math.max(row.held + row.wanted, row.fair ?? 0)));
  const name = (row) => h('a', { href: `#/queue/${encodeURIComponent(row.name)}` }, row.display || row.name);
  const figure = (row) => [`${gpus(row.held)} of ${row.limit === null ? `${row.fair === null ? '?' : gpus(row.fair)} fair` : `${gpus(row.limit)} limit`}`,
    row.waiting ? [' · ', h('a', { class: 'warn', href: `#/workloads?${query({ state: 'waiting', queue: row.name })}` }, plural(row.waiting, 'waits', 'wait'))] : ''].flat();
  return [...busiest.map((row) => h('div', { class: 'line' }, h('span', {}, name(row)), queueGauge(row, most), h('span', { class: 'num' }, figure(row)))),
    h('ul', { class: 'legend' }, [['has', 'used'], ['wants', 'waited for'], ['fair', 'fair share'], ['limit', 'limit']].map(([kind, text]) => h('li', {}, h('i', { class: `swatch ${kind}` }), text))),
    total > busiest.length ? h('p', { class: 'faint' }, h('a', { href: '#/queues' }, `All ${number(total)} queues`)) : null].filter(Boolean);
}

/** A card: its width is what it grants, each share a column, and the height in it what is used. */
function drawnCard(card) {
  const used = card.shares.reduce((sum, share) => sum + (share.used ?? 0), 0);
  const names = card.shares.map((share) => (share.pod ? share.pod.split('/')[1] : ''));
  const label = card.trouble || (card.shares.length === 0 ? 'free' : card.shares.length === 1 ? names[0] || '1 share' : `${card.shares.length} shares`);
  const words = [`GPU ${card.index}`, `${number(card.granted)} of ${number(card.grantable)} MiB granted`, card.heard ? `${number(used)} used` : 'its agent is disconnected', card.trouble,
    ...card.shares.slice(0, 8).map((share, at) => `${names[at] || 'a share'} ${number(share.kept)} MiB${share.used === null ? '' : `, ${number(share.used)} used`}`)].filter(Boolean).join(' · ');
  const kind = card.cordoned ? 'cordoned' : card.trouble ? 'broken' : card.heard ? '' : 'unheard';
  return h('a', { class: `card ${kind}`, href: `#/card/${card.uuid}`, title: words, 'aria-label': words },
    h('span', { class: 'shares' }, card.shares.map((share) => h('i', { width: of(share.kept, card.grantable) }, h('u', { height: of(share.used ?? 0, share.kept) })))),
    h('span', { class: 'label' }, h('b', {}, String(card.index)), ` ${label}`));
}

function fleet({ drawn, cards }) {
  const shown = drawn.reduce((sum, node) => sum + node.cards.length, 0);
  return [h('ul', { class: 'legend' }, [['granted', 'granted (width)'], ['used', 'used (height)'], ['cordoned', 'cordoned'], ['broken', 'broken']].map(([kind, text]) => h('li', {}, h('i', { class: `swatch ${kind}` }), text))),
    h('div', { class: drawn.every((node) => node.cards.length <= 2) ? 'nodes small' : 'nodes' }, drawn.map((node) => h('div', { class: 'node' }, h('a', { class: 'name', href: `#/cards?${query({ filter: node.node })}` }, node.node), h('div', { class: 'cards' }, node.cards.map(drawnCard))))),
    shown < cards.cards ? h('p', { class: 'faint' }, `${number(shown)} of ${number(cards.cards)} cards; those with problems come first. `, h('a', { href: '#/fleet' }, 'All cards in one picture')) : null].filter(Boolean);
}

/** What happened, the newest first. */
function changes({ rows, left }) {
  if (!rows.length) return h('p', { class: 'faint' }, 'Nothing that is recorded: no start, eviction, fault, cordon or exceeded limit.');
  const what = (change) => (change.uid && change.words ? [podLink({ uid: change.uid, name: change.words }), ' runs'] : [change.kind === 'running' ? `${change.words} run` : `${change.kind}: ${change.words}`]);
  const place = (change) => (change.card ? [' on ', h('a', { href: `#/card/${change.card}` }, change.place ?? change.card)] : []);
  return [h('ol', { class: 'changes' }, rows.map((change) => h('li', { class: change.kind }, h('time', { datetime: new Date(change.at).toISOString() }, moment(change.at)), h('span', {}, ...what(change), ...place(change))))),
    left ? h('p', { class: 'faint' }, `${number(left)} more. `, h('a', { href: '#/time' }, 'The last hour')) : null].filter(Boolean);
}

/** How many shares each strength of fence holds. */
function held({ held: counts }) {
  const rows = [['Hard', counts.hard], ['Guarded', counts.guarded], ['Watched', counts.watched], ['Whole cards', counts.whole], ['Not known yet', counts.unknown]];
  const most = Math.max(1, ...rows.map(([, count]) => count));
  return [...rows.map(([name, count]) => line(name, part(count, most, 'count'), number(count))),
    h('p', { class: 'faint' }, 'Hard: the driver refuses more than the limit. Guarded: MPS stops ordinary programs, the watchdog kills others. Watched: the watchdog alone.')];
}

function products(rows) {
  return table('', noSpan, 'Memory by product', [
    ['Product', null, '', (row) => row.product], ['Cards', null, 'num', (row) => number(row.cards)], ['Free', null, 'num', (row) => number(row.free)],
    ['Memory', null, '', (row) => bar(row.granted, row.used, row.grantable)],
    ['Granted', null, 'num', (row) => `${memory(row.granted)} of ${memory(row.grantable)}`], ['Used', null, 'num', (row) => memory(row.used)],
  ], rows);
}

/** What the tenants of a namespace have, may have and leave idle. */
function home(one, mayQueues) {
  const rows = one.queues.map((row) => line(row.display || row.name, queueGauge(row, Math.max(1, row.held + row.wanted, row.fair ?? 0, row.limit ?? 0)), queueWords(row)));
  return panel(`home-${one.namespace}`, `Namespace ${one.namespace}`, 'full',
    h('p', {}, h('a', { href: `#/workloads?${query({ namespace: one.namespace })}` }, `${plural(one.pods, 'pod holds', 'pods hold')} ${memory(one.granted)} of GPU memory`), one.waiting ? `, ${plural(one.waiting, 'waits', 'wait')}` : ', none waits', '.'),
    line('Have', part(one.granted, one.granted, 'granted'), memory(one.granted)), line('Use', part(one.used, one.granted, 'used'), memory(one.used)), line('Leave idle', part(one.idle, one.granted, 'idle'), memory(one.idle)),
    rows.length ? [h('h3', {}, 'May have, by queue'), ...rows] : mayQueues ? h('p', { class: 'faint' }, 'No queue of these pods is known.') : null);
}

/** The rights that this reader lacks, each with its resource. */
function missing(data) {
  return [[data.cards, 'gpunodes.aliquot.dev'], [data.queues !== null, 'queues.scheduling.run.ai'], [data.pods.whole, 'pods in all namespaces']].filter(([has]) => !has).map(([, what]) => what);
}

export function overview(data) {
  const homes = data.homes ?? [];
  return ['Now', [
    lacks(missing(data), 'cards, queues and pods that need these rights are left out'),
    data.missing.length ? h('p', { class: 'lacks' }, `This scheduler has not listed everything yet: ${data.missing.join(', ')}.`) : null,
    h('div', { class: 'panels' },
      panel('now', 'What is wrong', 'full', problems(data.now, data.pods)),
      ...homes.map((one) => home(one, data.queues !== null)),
      data.cards && panel('capacity', 'Capacity', 'third', capacity(data)), data.busiest && panel('queues', 'Queues, in GPUs', data.cards ? 'rest' : 'full', queues(data)),
      data.cards && panel('fleet', 'Fleet', 'full', fleet(data)),
      panel('changes', 'Last 15 minutes', data.cards ? 'rest' : 'full', changes(data.changed)), data.cards && panel('held', 'How shares are held', 'third', held(data)),
      data.products?.length > 1 && panel('products', 'Products', 'full', products(data.products))),
  ].filter(Boolean)];
}
