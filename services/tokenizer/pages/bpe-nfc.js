// Unicode NFC, with the characters of the text that each character came from.

const RUNS = /[\0-\x7f][^\0-\x7f]*|[^\0-\x7f]+/g; // ASCII composes with nothing before it
// The only characters that are no marks but become marks when decomposed (UAX 15, non-starter decompositions).
const PAIRS_OF_MARKS = "\u0f73\u0f75\u0f81";
const LONGEST_DECOMPOSITION = 4; // characters (UAX 15, table of expansion factors)
const marks = new Map();

/**
 * @param {string} text
 * @param {number} place the number of its first character, in code points
 * @returns {{normalized: string, origins: number[][]|null}} origins: [start, end) of each character of `normalized`;
 *   null where the text is normalized already
 */
export const nfcWithOrigins = (text, place) => {
  if (text.normalize("NFC") === text) return { normalized: text, origins: null };
  const parts = [];
  const origins = [];
  for (const [run] of text.matchAll(RUNS)) {
    for (const cluster of clusters(run)) {
      const normalized = cluster.normalize("NFC");
      const end = place + [...cluster].length;
      parts.push(normalized);
      for (const _ of normalized) origins.push([place, end]);
      place = end;
    }
  }
  return { normalized: parts.join(""), origins };
};

/** The shortest parts that normalize independently. */
function* clusters(run) {
  let cluster = "";
  let length = 0;
  for (const character of run) {
    if (cluster && !joins(cluster, length, character)) {
      yield cluster;
      [cluster, length] = ["", 0];
    }
    cluster += character;
    length++;
  }
  yield cluster;
}

const joins = (cluster, length, character) => {
  if (isMark(character)) return true;
  if (length > LONGEST_DECOMPOSITION) return false; // it ends in a mark that composes with nothing
  return (cluster + character).normalize("NFC") !== cluster.normalize("NFC") + character.normalize("NFC");
};

/** Whether a character can be reordered: behind U+0345, whose combining class is the highest, it is. */
const isMark = (character) => {
  if (!marks.has(character)) {
    const behind = `a\u0345${character}`;
    const reordered = behind.normalize("NFD") !== `a\u0345${character.normalize("NFD")}`;
    marks.set(character, reordered || character === "\u0345" || PAIRS_OF_MARKS.includes(character));
  }
  return marks.get(character);
};
