// Byte-pair merging of one pretoken: always the pair of lowest rank, and of equal ranks the leftmost
// (Sennrich et al. 2016, arXiv 1508.07909, algorithm 1), with a heap of pairs: n log n.

const ID = 2 ** 21;
const PLACE = 2 ** 26; // more than the bytes of any text here

/**
 * @param {number[]} ids those of the bytes
 * @param {Map<number, number>} merges by left id * 2**21 + right id: rank * 2**21 + id of the result
 * @returns {Int32Array|number[]} ids between which there is no merge
 */
export const merge = (ids, merges) => {
  const size = ids.length;
  if (size < 2) return ids;
  const tokens = Int32Array.from(ids); // -1: absorbed by one to its left
  const next = Int32Array.from(ids, (_, place) => place + 1);
  const previous = Int32Array.from(ids, (_, place) => place - 1);
  const found = new Float64Array(size); // the merge of each token with the next one, -1: none
  const heap = [];
  const look = (place) => {
    const right = next[place];
    found[place] = (right < size ? merges.get(tokens[place] * ID + tokens[right]) : undefined) ?? -1;
    if (found[place] >= 0) push(heap, Math.floor(found[place] / ID) * PLACE + place);
  };
  for (let place = 0; place < size; place++) look(place);
  while (heap.length) {
    const entry = pop(heap);
    const place = entry % PLACE;
    // Outdated, if it was absorbed or what is right of it has changed.
    if (tokens[place] < 0 || Math.floor(found[place] / ID) !== Math.floor(entry / PLACE)) continue;
    const right = next[place];
    tokens[place] = found[place] % ID;
    tokens[right] = -1;
    next[place] = next[right];
    if (next[place] < size) previous[next[place]] = place;
    look(place);
    if (previous[place] >= 0) look(previous[place]);
  }
  return tokens.filter((token) => token >= 0);
};

const push = (heap, entry) => {
  let child = heap.length;
  for (let parent; child > 0 && heap[(parent = (child - 1) >> 1)] > entry; child = parent) heap[child] = heap[parent];
  heap[child] = entry;
};

const pop = (heap) => {
  const top = heap[0];
  const entry = heap.pop();
  const size = heap.length;
  let parent = 0;
  for (let child = 1; child < size; child = 2 * parent + 1) {
    if (heap[child + 1] < heap[child]) child++;
    if (entry <= heap[child]) break;
    heap[parent] = heap[child];
    parent = child;
  }
  if (size) heap[parent] = entry;
  return top;
};
