// A pod: how it is, what would help it, when it will run, and its story.

import { age, copy, h, lacks, number } from './dom.js';
import { moment, s } from './chart.js';
import { query } from './list.js';
import { memoryChart } from './pages.js';

const KINDS = { asked: [6, 'requested'], waits: [1, 'pending'], reserved: [4, 'reserved'], bound: [0, 'bound'], prepared: [3, 'prepared'], running: [2, 'running'], hard: [2, 'Hard fence'], guarded: [0, 'Guarded fence'], watched: [1, 'Watched'], unverified: [1, 'fence not read back'], limit: [5, 'limit exceeded'], refused: [5, 'refused'], evicted: [5, 'evicted'], ended: [6, 'ended'] };

/** One line of time: between two steps the colour of the former. */
function line(steps) {
  const first = steps[0].at;
  const end = Math.max(Date.now(), steps.at(-1).at + 1);
  const over = ['ended', 'evicted'].includes(steps.at(-1).kind) ? steps.at(-1).at : end;
  // By rank as much as by time: what took milliseconds is seen beside what took days.
  const log = (at) => Math.log1p(Math.max(0, at - first) / 100) / Math.log1p(Math.max(1, over - first) / 100);
  const states = steps.filter((step) => !['hard', 'guarded', 'watched', 'unverified', 'limit', 'refused'].includes(step.kind));
  const x = (at) => Math.round(10 + 940 * Math.min(1, log(at)));
  const bars = states.map((step, at) => s('rect', { class: `k${KINDS[step.kind][0]}`, x: x(step.at), y: 14, height: 16, width: Math.max(2, x(states[at + 1]?.at ?? over) - x(step.at)) }, s('title', {}, `${KINDS[step.kind][1]}: ${step.words}`)));
  const dots = steps.map((step) => s('circle', { class: `k${KINDS[step.kind][0]}`, cx: x(step.at), cy: 22, r: 6 }, s('title', {}, `${moment(step.at, true)} ${KINDS[step.kind][1]}: ${step.words}`)));
  return s('svg', { class: 'line', viewBox: '0 0 960 44', role: 'img', 'aria-label': `From requested to ${KINDS[steps.at(-1).kind][1]}, each step below` }, bars, dots);
}

function between(steps, at) {
  const passed = steps[at].at - steps[0].at;
  return at === 0 ? '' : passed < 10e3 ? `+${(passed / 1000).toFixed(passed % 1000 ? 2 : 0)} s` : `+${age(Date.now() - passed)}`;
}

const mib = (value) => `${number(value)} MiB`;

/** One sentence that says how the pod is. */
function howItIs(data, waits) {
  if (data.gone) return ['It was deleted.'];
  const broken = data.phase && !['Running', 'Pending', 'Succeeded', 'Failed'].includes(data.phase);
  if (waits && !waits.node) {
    const position = waits.place ? `, position ${number(waits.place)},` : '';
    return [h('b', {}, `Waits in queue ${waits.queue}${position} for ${age(waits.created)}`), `: ${waits.why.split('\n')[0] || 'the scheduler has not tried it yet'}`];
  }
  if (['Succeeded', 'Failed'].includes(data.phase)) return [h('b', {}, data.phase === 'Failed' ? 'Failed.' : 'Ended as it should.')];
  const cards = data.holds ?? [];
  const where = cards.flatMap((card, at) => [at ? ', ' : '', h('a', { href: `#/card/${card.uuid}` }, `${card.node} / ${card.index}`)]);
  const on = where.length ? where : [data.node ?? ''];
  const used = (data.shares ?? []).reduce((sum, share) => sum + (share.used ?? 0), 0);
  const sm = (data.shares ?? []).map((share) => share.sm).filter((percent) => percent !== null);
  const granted = cards.reduce((sum, card) => sum + card.memory, 0);
  const reach = Math.max(0, ...cards.map((card) => card.reach ?? 0));
  const fence = cards.find((card) => card.fence)?.fence;
  const most = Math.max(0, ...cards.map((card) => card.memory));
  const facts = [cards.length ? `${mib(granted)} granted` : '', data.shares?.length ? `${mib(used)} used` : '', sm.length ? `SM ${sm.reduce((sum, one) => sum + one, 0)} %` : '', fence ?? (cards.some((card) => card.mode === 'exclusive') ? 'alone on its card' : ''),
    reach > most ? `at worst one of its processes reaches ${mib(reach)} until the watchdog ends it` : ''].filter(Boolean);
  const state = broken ? `Does not run (${data.phase})` : data.phase === 'Running' ? 'Runs' : `Starts${waits?.why ? ` (${waits.why.split('\n')[0]})` : ''}`;
  return [h('b', { class: broken ? 'bad' : null }, `${state} on `), ...on, facts.length ? ` · ${facts.join(' · ')}` : ''];
}

/** `explain`'s advice: asked for by a button, as each change is tried on a copy of the scheduler's state. */
function advice(data, waits, answer, parameters) {
  const ask = () => { location.hash = `#/pod/${encodeURIComponent(data.uid)}?${query({ in: parameters.get('in') ?? `${data.namespace}/${data.name}`, advice: Number(parameters.get('advice') ?? 0) + 1 })}`; };
  const parts = [h('h2', {}, 'What would let it run?')];
  if (waits.start) parts.push(h('p', { id: 'start' }, h('b', {}, 'Estimated start: '), waits.start, '.'));
  if (!parameters.get('advice')) return [...parts, h('p', {}, h('button', { id: 'ask-advice', onclick: ask }, 'Try changes'), ' The scheduler tries them on copies of its state; nothing is changed.')];
  if (!answer) return [...parts, h('p', { id: 'advice', role: 'status' }, 'Changes are being tried…')];
  if (answer.error) return [...parts, h('p', { id: 'advice', class: 'bad' }, answer.error, ' ', h('button', { id: 'ask-advice', onclick: ask }, 'Try again'))];
  const does = (change) => (change.suffices ? 'Tried: the next decisions place it.' : 'Needed first: nothing else helps without it.');
  const words = (text) => text.charAt(0).toUpperCase() + text.slice(1);
  if (!answer.changes.length) parts.push(h('p', { id: 'advice' }, 'No single change that was tried would let it run.'));
  else parts.push(h('ul', { class: 'choices', id: 'advice' }, answer.changes.map((change, at) => h('li', {}, h('b', {}, words(change.what)), h('span', { class: 'faint' }, does(change)), change.command ? copy(change.command, `choice-${at}`) : null))));
  if (answer.hidden) parts.push(lacks(['gpunodes.aliquot.dev and pods in all namespaces'], `${answer.hidden} more ${answer.hidden === 1 ? 'change that names' : 'changes that name'} others' pods or nodes ${answer.hidden === 1 ? 'is' : 'are'} left out`));
  return parts;
}

/** The story, step by step. */
function story(steps) {
  const clock = (at) => `${moment(at, true)}:${String(new Date(at).getSeconds()).padStart(2, '0')}`;
  return [h('h2', {}, 'Story'), line(steps), h('ol', { class: 'timeline' }, steps.map((step, at) => h('li', {}, h('i', { class: `swatch k${KINDS[step.kind][0]}` }), h('time', { datetime: new Date(step.at).toISOString() }, clock(step.at)),
    h('span', { class: 'since' }, between(steps, at)), h('b', {}, KINDS[step.kind][1]), h('span', { class: 'words' }, step.words + (step.count > 1 ? ` (${number(step.count)} times)` : '')))))];
}

/** Everything that is known of one pod. */
export function pod(data, { more, uid, parameters }) {
  const waits = more.pod && !more.pod.error ? more.pod : null;
  const full = `${data.namespace}/${data.name}`;
  const pairs = [['Queue', data.queue ? h('a', { href: `#/queue/${encodeURIComponent(data.queue)}` }, data.queue) : ''], ['Made by', data.owner], ['Requests', data.asks],
    ['Priority', waits ? `${waits.priority} ${waits.class}` : ''], ['Trace', data.trace ? h('code', {}, data.trace) : ''], ['UID', h('code', {}, uid)],
    ['Decision', data.decision ? h('code', {}, data.decision) : ''], ['Allocation', data.allocations.length ? h('code', {}, data.allocations.join(', ')) : '']];
  const shown = pairs.filter(([, value]) => value !== '' && value !== null && value !== undefined);
  const links = (data.links ?? []).map((link) => h('a', { class: 'link', href: link.url, target: '_blank', rel: 'noreferrer noopener' }, link.name));
  const plain = /^[A-Za-z0-9.\/-]+$/.test(full);
  const parts = [h('p', { id: 'how' }, ...howItIs(data, waits)), links.length ? h('p', { id: 'links' }, links) : null,
    plain && !data.gone ? h('p', {}, copy(waits && !waits.node ? `kubectl aliquot explain ${full}` : `kubectl -n ${data.namespace} logs ${data.name} --all-containers`, 'copy-pod')) : null];
  if (waits && !waits.node) parts.push(...advice(data, waits, more.advice, parameters));
  if (data.steps.length) parts.push(...story(data.steps));
  if (!data.events) parts.push(lacks([`events in ${data.namespace}`], 'the steps that only they tell are left out, or they could not be read'));
  if (waits?.explain) parts.push(h('h2', {}, 'Node by node'), h('pre', {}, waits.explain));
  else if (waits?.lacks) parts.push(lacks([waits.lacks], 'why each node does not fit is left out'));
  if (more.time && !more.time.error) parts.push(memoryChart('pod', 'Memory of its shares', more.time));
  parts.push(h('h2', {}, 'Facts'), h('dl', {}, shown.flatMap(([name, value]) => [h('dt', {}, name), h('dd', {}, value)])));
  return [full, parts.filter(Boolean)];
}
