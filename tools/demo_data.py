"""The question generator of the demo model (tools/train_demo.py).

Every example is one question with one right answer, drawn from a random generator: nothing is read from outside.
A skill is a function from a generator to an Example. The example's `key` names the *problem*, not its phrasing
("sum 137 245" whichever way it is asked and in either order), and a hash of the key decides whether the problem
belongs to training or is held out. So a held-out problem occurs in training in no phrasing at all.

Answers that need several steps show the step (36 * 7 = 210 + 42 = 252; p-l-a-n-e-t before its letters are counted),
because a small model computes one step per token well and several at once badly. A shown partial sum is itself a sum
problem, so an example that shows a held-out one is held out too (`shown_sums`).

Splitting by drawing a fixed list of test questions was rejected: another phrasing of a listed question would have
stayed in training.
"""
import hashlib
from collections import namedtuple

Example = namedtuple("Example", "key question answer shown_sums", defaults=((),))

# Held out whatever their hash says: the question that README and tests ask first.
HELD_OUT_BY_NAME = {"sum 137 245"}

WORDS = """
able above acid acorn actor adult after again agent alarm album alive alone amber anchor angle animal ankle answer ant
apple apron arch arm armour arrow artist ash aunt autumn avenue axe baby bacon badge bag baker ball bamboo banana band
bank barley barn barrel basket bath beach bean bear beard beast bed bee bell belt bench berry bike bird biscuit black
blanket block blood blue board boat body bone book boot border bottle bottom bowl box boy brain branch brave bread
breeze brick bridge bright broom brother brown brush bucket bullet butter button cabin cable cake calm camel camera
camp canal candle candy canoe captain car carbon card carpet carrot cart castle cat cattle cave ceiling cellar chain
chair chalk cheese cherry chest chicken chief child chimney circle city clay clean clever clock cloth cloud clover coal
coast coat cocoa coffee coin cold collar colour copper coral corner cotton country cousin cow cradle crane cream creek
crown crystal cup curtain cushion dance danger dark daughter dawn deep deer desert desk diamond dinner dish doctor dog
dollar donkey door dragon drawer dream dress drill drink drum duck dust eagle early earth east easy echo edge eel eight
elbow elder empty engine evening exit eye fabric face factory fairy falcon family farm fast father feather fence fern
ferry fever field fig finger fire fish flag flame flat floor flour flower flute fog food foot forest fork fox frame
fresh friend frog frost fruit fur galaxy game garden garlic gate gentle ghost giant gift ginger giraffe girl glass
globe glove goat gold goose grain grape grass gravel green grey ground guest guitar hammer hand happy harbour hat hawk
hazel head heart heavy hedge helmet hen herb hill hollow honey hook horse hotel hour house hut ice inch ink insect
iron island ivory jacket jam jar jelly jewel journey judge juice jungle kettle key kind king kitchen kite kitten knee
knife knot ladder lake lamb lamp lantern large laugh lawn leaf leather left lemon letter level library light lily lime
line lion lip liquid little lizard lock long loud lunch machine magnet maple marble market mask meadow meal melon metal
middle milk mill minute mirror mist moment money monkey month moon morning moss mother motor mountain mouse mouth music
nail name narrow neck needle nephew nest net night noble noise noon north nose number nurse nut oak oasis ocean office
olive onion open orange orchard orchid otter oven owl oyster page paint palace palm panda paper parcel parent park
parrot pasta path peach peak pear pebble pen pencil pepper person piano picture pig pigeon pillow pilot pine pink pipe
pirate plain planet plant plate pocket poem poet pond pony potato powder prince prize puddle pump puppy purple purse
puzzle quarter queen quick quiet quilt rabbit radio rail rain rainbow raven razor red reed rice rich ring river road
robin rock roof room root rope rose rough round ruby rug ruler sail salad salmon salt sand sandal saturn sauce saw
scarf school science sea season seed shadow sharp sheep sheet shelf shell ship shirt shoe shop shore short shoulder
silence silk silver simple singer sister sky sleep slow small smoke smooth snail snake snow soap soft soil soldier song
soup south spade spider spoon spring square stable stair star station steam steel stone storm story stove straw stream
street string student sugar summer sun sunset swamp swan sweet sword table tailor tall tea teacher temple tent thread
throat thumb thunder ticket tiger timber tiny toast toe tomato tool tooth torch tower town toy trade train travel tree
triangle truck trumpet trunk tulip tunnel turkey turnip turtle twig umbrella uncle valley velvet village vine violet
violin voice volcano wagon wall walnut warm watch water wave wax weather west whale wheat wheel whisper white wide
willow wind window wine wing winter wire wise wolf woman wonder wood wool world yard year yellow young zebra zero
""".split()
DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
MONTHS = "January February March April May June July August September October November December".split()

# (large unit, small unit, factor). Powers of ten are answered at once, other factors with partial products.
UNITS = [("kilometres", "metres", 1000), ("metres", "centimetres", 100), ("centimetres", "millimetres", 10),
         ("kilograms", "grams", 1000), ("litres", "millilitres", 1000), ("tonnes", "kilograms", 1000),
         ("seconds", "milliseconds", 1000), ("dollars", "cents", 100), ("hours", "minutes", 60),
         ("minutes", "seconds", 60), ("days", "hours", 24), ("weeks", "days", 7), ("years", "months", 12),
         ("feet", "inches", 12), ("dozens", "pieces", 12)]


def number(rng):
    """0 to 999; one in three has its length drawn first, so that short numbers are not rare."""
    return rng.randrange(1000) if rng.random() < 0.67 else rng.randrange(10 ** rng.randint(1, 3))


def word(rng, made_up=0.4):
    """A common word, or a made-up one: the letter skills must work from spelling, not from a list."""
    if rng.random() >= made_up:
        return rng.choice(WORDS)
    if rng.random() < 0.25:
        return "".join(rng.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(rng.randint(3, 7)))
    syllables = (rng.choice(["", "b", "c", "d", "f", "g", "h", "j", "k", "l", "m", "n", "p", "qu", "r", "s", "t", "v",
                             "w", "y", "z", "st", "tr", "sh", "ch", "br", "pl", "gr", "th"]) + rng.choice("aeiou") +
                 rng.choice(["", "", "", "n", "r", "l", "t", "s", "m", "ck", "ll", "nd", "x"]) for _ in range(4))
    return "".join(syllables)[:rng.randint(3, 11)]


def ask(rng, *phrasings, **values):
    """One phrasing, filled in; sometimes typed lazily (small first letter, no final mark)."""
    text = rng.choice(phrasings).format(**values)
    if rng.random() < 0.12:
        text = text[0].lower() + text[1:]
    if rng.random() < 0.12 and text[-1] in ".?":
        text = text[:-1]
    return text


def hyphens(text):
    return "-".join(text)


def plural(count, noun):
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


# ---------------------------------------------------------------- numbers

def sum_of_two(rng):
    a, b = number(rng), number(rng)
    question = ask(rng, "What is {a} + {b}?", "What is {a} plus {b}?", "Add {a} and {b}.", "{a} + {b}", "{a}+{b}=",
                   "Calculate {a} + {b}.", "What is the sum of {a} and {b}?", "How much is {a} + {b}?", "What's {a}+{b}?",
                   a=a, b=b)
    return Example(f"sum {min(a, b)} {max(a, b)}", question, f"{a} + {b} = {a + b}.")


def difference(rng):
    a, b = number(rng), number(rng)
    if a < b and rng.random() < 0.7:  # results below zero stay a minority
        a, b = b, a
    question = ask(rng, "What is {a} - {b}?", "What is {a} minus {b}?", "Subtract {b} from {a}.", "{a} - {b}",
                   "{a}-{b}=", "Calculate {a} - {b}.", "How much is {a} - {b}?", "Take {b} away from {a}.",
                   "What's {a}-{b}?", a=a, b=b)
    return Example(f"difference {a} {b}", question, f"{a} - {b} = {a - b}.")


def partial_products(n, factor):
    """The shown step of n * factor for a two-digit n ("210 + 42 = ", from 36 * 7), and the sum in it."""
    tens, ones = n // 10 * 10 * factor, n % 10 * factor
    if not tens or not ones:
        return "", ()
    return f"{tens} + {ones} = ", (f"sum {min(tens, ones)} {max(tens, ones)}",)


def product(rng):
    n, factor = rng.randint(2, 99), rng.randint(2, 12)
    a, b = (n, factor) if rng.random() < 0.5 else (factor, n)
    question = ask(rng, "What is {a} * {b}?", "What is {a} times {b}?", "Multiply {a} by {b}.", "{a} * {b}", "{a}*{b}=",
                   "Calculate {a} * {b}.", "What is the product of {a} and {b}?", "How much is {a} * {b}?", a=a, b=b)
    n, factor = max(a, b), min(a, b)  # the larger one is split, so that a pair always shows the same step
    step, shown_sums = partial_products(n, factor)
    return Example(f"product {min(a, b)} {max(a, b)}", question, f"{a} * {b} = {step}{a * b}.", shown_sums)


def compare(rng):
    a, b = number(rng), number(rng)
    if rng.random() < 0.3:  # close numbers are the hard ones
        b = max(0, min(999, a + rng.randint(-20, 20)))
    if a == b:
        b = a + 1
    small, large = min(a, b), max(a, b)
    key, kind = f"compare {small} {large}", rng.randrange(3)
    if kind == 0:
        return Example(key, ask(rng, "Which is larger, {a} or {b}?", "Which number is bigger: {a} or {b}?",
                                "What is the larger of {a} and {b}?", a=a, b=b), f"{large} is larger than {small}.")
    if kind == 1:
        return Example(key, ask(rng, "Which is smaller, {a} or {b}?", "Which number is less: {a} or {b}?",
                                "What is the smaller of {a} and {b}?", a=a, b=b), f"{small} is smaller than {large}.")
    asked = rng.choice(["larger", "smaller"])
    truth = "larger" if a > b else "smaller"
    return Example(key, ask(rng, "Is {a} {asked} than {b}?", "Is it true that {a} is {asked} than {b}?",
                            "True or not: is {a} {asked} than {b}?", a=a, b=b, asked=asked),
                   f"{'Yes' if asked == truth else 'No'}, {a} is {truth} than {b}.")


def parity(rng):
    n = number(rng)
    question = ask(rng, "Is {n} even or odd?", "Is the number {n} odd or even?", "Tell me if {n} is even or odd.",
                   "Even or odd: {n}?", n=n)
    return Example(f"parity {n}", question, f"{n} is {'odd' if n % 2 else 'even'}.")


def sort_numbers(rng):
    numbers = [number(rng) for _ in range(rng.randint(3, 6))]
    listed, down = ", ".join(map(str, numbers)), rng.random() < 0.3
    question = (ask(rng, "Sort from largest to smallest: {listed}", "Put these numbers in descending order: {listed}.",
                    "Sort these numbers from high to low: {listed}.", listed=listed) if down else
                ask(rng, "Sort these numbers: {listed}.", "Put these numbers in order: {listed}.",
                    "Sort from smallest to largest: {listed}", listed=listed))
    ordered = sorted(numbers, reverse=down)
    return Example(f"sort_numbers {sorted(numbers)}", question, ", ".join(map(str, ordered)) + ".")


def sequence(rng):
    start, step = rng.randint(0, 99), rng.randint(1, 25)
    listed = ", ".join(str(start + i * step) for i in range(4))
    question = ask(rng, "What comes next: {listed}?", "Which number comes next? {listed}", "Continue: {listed}.",
                   "What is the next number after {listed}?", listed=listed)
    return Example(f"sequence {start} {step}", question, f"Each step adds {step}, so {start + 4 * step} comes next.")


def count(rng):
    start, length = rng.randint(0, 199), rng.randint(3, 30)
    first, last = start, start + length - 1
    if rng.random() < 0.3:
        question = ask(rng, "Count down from {last} to {first}.", "Count backwards from {last} to {first}.",
                       "Please count down from {last} to {first}.", first=first, last=last)
        numbers = range(last, first - 1, -1)
    else:
        question = ask(rng, "Count from {first} to {last}.", "Count up from {first} to {last}.",
                       "List the numbers from {first} to {last}.", "Please count from {first} to {last}.",
                       first=first, last=last)
        numbers = range(first, last + 1)
    return Example(f"count {first} {last}", question, ", ".join(map(str, numbers)) + ".")


# ---------------------------------------------------------------- words

def sort_words(rng):
    words = list(dict.fromkeys(word(rng, made_up=0.15) for _ in range(rng.randint(3, 5))))
    question = ask(rng, "Sort these words: {listed}.", "Put these words in alphabetical order: {listed}.",
                   "Sort alphabetically: {listed}", "Which order is alphabetical? {listed}", listed=", ".join(words))
    return Example(f"sort_words {sorted(words)}", question, ", ".join(sorted(words)) + ".")


def spell(rng):
    w = word(rng)
    question = ask(rng, "Spell the word {w}.", "How do you spell {w}?", "Spell {w}.", "Please spell \"{w}\".", w=w)
    return Example(f"spell {w}", question, hyphens(w) + ".")


def reverse(rng):
    w = word(rng)
    question = ask(rng, "Reverse the word {w}.", "Spell {w} backwards.", "What is {w} spelled backwards?",
                   "Reverse \"{w}\".", "Write {w} in reverse.", w=w)
    return Example(f"reverse {w}", question, f"{hyphens(w)} backwards is {hyphens(w[::-1])}.")


def word_length(rng):
    w = word(rng)
    question = ask(rng, "How many letters are in {w}?", "How many letters does the word {w} have?",
                   "Count the letters in {w}.", "How long is the word \"{w}\"?", w=w)
    return Example(f"word_length {w}", question, f"{hyphens(w)} has {plural(len(w), 'letter')}.")


def letter_count(rng):
    w = word(rng)
    letter = rng.choice(w) if rng.random() < 0.85 else rng.choice("abcdefghijklmnopqrstuvwxyz")
    question = ask(rng, "How many times does the letter {letter} appear in {w}?", "Count the letter {letter} in {w}.",
                   "How often does {letter} occur in the word {w}?", "How many {letter}'s are in {w}?",
                   "How many {letter}'s are there in the word {w}?", "How many {letter} in {w}?", letter=letter, w=w)
    return Example(f"letter_count {letter} {w}", question,
                   f"{hyphens(w)}: {letter} appears {plural(w.count(letter), 'time')}.")


def edge_letter(rng):
    w, edge = word(rng), rng.choice(["first", "last"])
    question = ask(rng, "What is the {edge} letter of {w}?", "Which letter comes {edge} in {w}?",
                   "Tell me the {edge} letter of the word {w}.", edge=edge, w=w)
    return Example(f"edge_letter {edge} {w}", question,
                   f"The {edge} letter of {w} is {w[0] if edge == 'first' else w[-1]}.")


# ---------------------------------------------------------------- calendar, clock, units

def calendar(rng, noun, names, limit):
    start, steps, later = rng.randrange(len(names)), rng.randint(1, limit), rng.random() < 0.6
    end = names[(start + (steps if later else -steps)) % len(names)]
    direction, span, name = "after" if later else "before", plural(steps, noun), names[start]
    phrasings = [f"What {noun} is {{span}} {{direction}} {{name}}?",
                 f"Which {noun} is {{span}} {{direction}} {{name}}?",
                 f"What {noun} comes {{span}} {{direction}} {{name}}?"]
    if later:
        phrasings.append(f"If this {noun} is {{name}}, what {noun} is it in {{span}}?")
    if steps == 1:
        phrasings += [f"What {noun} comes {{direction}} {{name}}?", f"Which {noun} is right {{direction}} {{name}}?"]
    question = ask(rng, *phrasings, span=span, direction=direction, name=name)
    return Example(f"{noun}s {name} {direction} {steps}", question, f"{span} {direction} {name} is {end}.")


def days(rng):
    return calendar(rng, "day", DAYS, 99)


def months(rng):
    return calendar(rng, "month", MONTHS, 36)


def clock(rng):
    hour, minute, later = rng.randrange(24), rng.randrange(0, 60, rng.choice([1, 5, 15])), rng.randint(1, 99)
    end = (hour * 60 + minute + later) % 1440
    start, span = f"{hour}:{minute:02d}", plural(later, "minute")
    question = ask(rng, "What time is it {span} after {start}?", "It is {start}. What time is it in {span}?",
                   "What time is {span} later than {start}?",
                   "A train leaves at {start} and takes {span}. When does it arrive?", span=span, start=start)
    return Example(f"clock {start} {later}", question, f"{span} after {start} is {end // 60}:{end % 60:02d}.")


def units(rng):
    large, small, factor = rng.choice(UNITS)
    decimal = factor in (10, 100, 1000)
    n = rng.randint(2, 999 if decimal and rng.random() < 0.7 else 99)
    key = f"units {large} {small} {n}"
    if decimal and rng.random() < 0.4:  # the way back, kept to whole results
        question = ask(rng, "How many {large} are {have} {small}?", "Convert {have} {small} to {large}.",
                       "What is {have} {small} in {large}?", large=large, small=small, have=n * factor)
        return Example(key, question, f"{n * factor} {small} = {n} {large}.")
    question = ask(rng, "How many {small} are {n} {large}?", "Convert {n} {large} to {small}.",
                   "How many {small} are in {n} {large}?", "What is {n} {large} in {small}?",
                   large=large, small=small, n=n)
    step, shown_sums = ("", ()) if decimal else partial_products(n, factor)
    return Example(key, question, f"{n} {large} = {step}{n * factor} {small}.", shown_sums)


# ---------------------------------------------------------------- fixed answers: memorised, never scored

ABOUT = [
    (["Who are you?", "What are you?", "What is your name?", "Introduce yourself.", "Are you a robot?"],
     "I am the demo model of Megalith, a very small language model. I add, sort, spell and count."),
    (["What can you do?", "Help", "How can you help me?", "What do you know?", "What should I ask you?"],
     "I can add and subtract numbers of up to three digits, multiply small ones, compare and sort, spell and reverse "
     "words, count letters, and work with days, months, times and units."),
    (["What is Megalith?", "Tell me about Megalith.", "Explain Megalith.", "What does Megalith do?"],
     "Megalith is an engine for large language models, written in C. It turns a model into a graph of small tasks and "
     "runs them in one program that never leaves the processor."),
    (["How large are you?", "How many parameters do you have?", "Are you a big model?", "How big are you?"],
     "I have between six and seven million parameters, so I fit into a file of about thirteen megabytes."),
    (["How were you trained?", "What were you trained on?", "Where does your knowledge come from?"],
     "I was trained in a few minutes on questions that a short script wrote by itself."),
    (["Hello", "Hi", "Hello!", "Hi there!", "Good morning!", "Hey"], "Hello! Ask me a sum, or let me spell a word."),
    (["Thanks", "Thank you.", "Thank you!", "Great, thanks."], "You are welcome."),
    (["Goodbye", "Bye", "Bye!", "See you later."], "Goodbye!"),
    (["Recite the alphabet.", "Say the alphabet.", "What is the alphabet?", "List all letters."],
     ", ".join("abcdefghijklmnopqrstuvwxyz") + "."),
    (["Name the days of the week.", "List the days of the week.", "What are the days of the week?"],
     ", ".join(DAYS) + "."),
    (["Name the months of the year.", "List the months.", "What are the months of the year?"], ", ".join(MONTHS) + "."),
]
OUTSIDE = ["What is the capital of {a}?", "Tell me a story about a {a}.", "Why is the {a} {b}?",
           "Who invented the {a}?", "Write a poem about {a}.", "Translate {a} into French.", "What is a {a}?", "Explain {a} to me.",
           "Do you like {a}?", "Where can I buy a {a}?", "How do I make {a} and {b}?", "What is the meaning of {a}?",
           "Who is the president of {a}?", "Write a program for {a}.", "What does a {a} eat?", "Tell me a joke."]


def about(rng):
    questions, answer = rng.choice(ABOUT)
    return Example("about", ask(rng, rng.choice(questions)), answer)


def outside(rng):
    """Questions beyond the skills, so that the model says so instead of inventing something."""
    if rng.random() < 0.6:
        return Example("outside", ask(rng, *OUTSIDE, a=word(rng, 0.1), b=word(rng, 0.1)),
                       "I do not know that. I only know sums, words, dates and units.")
    a, b = rng.randrange(1000, 10 ** rng.randint(4, 6)), number(rng)
    if rng.random() < 0.5:
        a, b = b, a
    return Example("outside", ask(rng, "What is {a} + {b}?", "What is {a} - {b}?", "{a} + {b}", "Add {a} and {b}.",
                                  "What is {a} plus {b}?", a=a, b=b), "I only know numbers of up to three digits.")


# name: (generator, share of training, held out in 1000 problems, held-out questions to ask)
SKILLS = {
    "sum": (sum_of_two, 14, 40, 2000), "difference": (difference, 12, 40, 1000), "product": (product, 7, 60, 500),
    "compare": (compare, 4, 40, 500), "parity": (parity, 1, 60, 300), "sort_numbers": (sort_numbers, 6, 40, 500),
    "sequence": (sequence, 4, 40, 500), "count": (count, 3, 40, 500), "sort_words": (sort_words, 7, 40, 500),
    "spell": (spell, 5, 40, 500), "reverse": (reverse, 7, 40, 500), "word_length": (word_length, 4, 40, 500),
    "letter_count": (letter_count, 6, 40, 500), "edge_letter": (edge_letter, 3, 40, 500), "days": (days, 5, 80, 500),
    "months": (months, 3, 80, 500), "clock": (clock, 6, 40, 500), "units": (units, 7, 40, 500),
    "about": (about, 2, 0, 0), "outside": (outside, 3, 0, 0),
}
NAMES = list(SKILLS)
SHARES = [SKILLS[name][1] for name in NAMES]


def key_is_held_out(key):
    """The first word of a key is the name of its skill."""
    if key in HELD_OUT_BY_NAME:
        return True
    digest = hashlib.blake2b(key.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") % 1000 < SKILLS[key.split(" ", 1)[0]][2]


def is_held_out(example):
    return key_is_held_out(example.key) or any(map(key_is_held_out, example.shown_sums))


def training_example(rng):
    while True:
        example = SKILLS[rng.choices(NAMES, SHARES)[0]][0](rng)
        if not is_held_out(example):
            return example


def held_out_examples(name, rng):
    """Up to the skill's number of different held-out questions; fewer where the problem space is small."""
    generator, _, _, wanted = SKILLS[name]
    found = {}
    for _ in range(400 * wanted):
        if len(found) == wanted:
            break
        example = generator(rng)
        if is_held_out(example):
            found.setdefault(example.question, example)
    return list(found.values())
