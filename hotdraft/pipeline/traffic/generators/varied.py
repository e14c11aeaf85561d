"""A mixture of everyday chat requests, to train a general draft on. It holds no SQL."""

import random
from collections.abc import Callable

from hotdraft.pipeline.traffic.generators.arithmetic import problem
from hotdraft.pipeline.traffic.generators.filling import distinct, fill
from hotdraft.pipeline.traffic.prompts import Prompt, ask

EXPLANATIONS = (
    "What is {topic}? Explain {length}.",
    "Explain {topic} to {audience} {length}.",
    "Why does {topic} matter? Answer {length}.",
    "Tell me one interesting fact about {topic} and explain it {length}.",
    "Give {2-4} key facts about {topic} for {audience}.",
    "Describe the history of {topic} {length}.",
    "What are common misunderstandings about {topic}? Answer {length}.",
    "What does the word '{term}' mean? Explain {length}.",
    "Define '{term}' for {audience} and use it in a sentence.",
    "Define the words '{term}' and '{term2}'.",
    "What does a {job} do on a {weather} {day}? Answer {length}.",
)
ADVICE = (
    "List {3-6} tips on how to {goal}.",
    "How can I {goal}? Give {2-5} {tone} suggestions.",
    "What should {audience} know in order to {goal}? Answer {length}.",
    "Make a plan for one week that helps a {job} to {goal}.",
    "{advice}. What should I do? Give {2-5} suggestions in a {tone} tone.",
    "{person} wants to {goal} and {goal2}. What is a good first step? Answer {length}.",
    "List {4-8} {group} and say one thing about each.",
    "Name {3-7} {group} and {3-7} {group2}.",
    "Give a simple recipe for {dish} with {food}, in {4-7} steps.",
    "Suggest {3-5} things to do in {city} on a {weather} {day}.",
)
WRITING = (
    "Write a {tone} email to {person} {surname} to {email}.",
    "I need to {email}. Write a {tone} email of {3-6} sentences and sign it as {person}.",
    "Write a {mood} story about a {creature} and a {object} in {city}, in about {60-150} words.",
    "Tell a short story with a {job}, a {object} and a {weather} {day}.",
    "Write the first paragraph of a {mood} story in which a {creature} meets a {job} near the {place}.",
    "Write a {mood} poem of {4-8} lines about {topic}.",
    "Write a short dialogue between a {job} and a {job2} about {topic}.",
    "Write a {tone} advertisement of {2-4} sentences for {company} in {city}.",
    "Suggest {3-6} names and a slogan for {company} with a {mood} image.",
    "Write a {tone} invitation to the {event} at the {place} on {day}, {1-28} {month}.",
    "Write a {tone} thank-you note to {person}, who gave me a {object}.",
    "Describe a {colour} {thing} for an online shop in {2-4} sentences.",
)
REWRITING = (
    "Rewrite this sentence in a {tone} tone: '{sentence}'",
    "Correct the grammar: 'yesterday {person} go to the {place} and buyed {3-9} {goods}'",
    "Turn this sentence into a question: '{sentence}'",
    "Make this sentence shorter: '{sentence}'",
    "Write the opposite of this sentence: '{sentence}'",
    "Continue this text with {2-4} sentences: '{sentence}'",
    "Give {2-4} other ways to say: '{phrase}'",
    "Translate into {language}: '{phrase}'",
    "How do you say '{phrase}' and '{phrase2}' in {language}?",
    "Translate into {language} and explain the words: '{phrase}'",
)
SENTENCES = (
    "{person} went to the {place} on a {weather} {day} because the {event} was about to begin.",
    "The {job} from {city} bought a {colour} {thing} and gave it to {person}.",
    "We could not visit the {place} in {month}, since {problem}.",
    "In {month}, {person} and {person2} learned {hobby} together and later opened {company}.",
    "Nobody noticed the {object} until the {creature} sat next to it.",
    "Although it was {weather}, {person} enjoyed {hobby} and ate {dish} afterwards.",
)
COMPARISONS = (
    "Compare {compare} {length}.",
    "What is the difference between {compare}? Explain it to {audience}.",
    "Give {2-4} advantages and {2-4} disadvantages of {topic}.",
    "Which is better for a {job}: {hobby} or {hobby2}? Give reasons {length}.",
    "Compare life in {city} and life in {city2} for a {job}, {length}.",
    "How are {topic} and {topic2} related? Answer {length}.",
)
CODE = (
    "Write a Python function that {function}. {style}.",
    "Write a Python function for a {job} that {function}. {style}.",
    "Write a Python function that {function}, and a second one that {function2}.",
    "Show how to test a Python function that {function}. {style}.",
    "Explain step by step how a Python function that {function} works, for {audience}.",
    "Write a Python class for a {job} with {2-4} methods. {style}.",
)
PARAGRAPHS = (
    "On {day}, {1-28} {month}, the {event} took place at the {place} of {city}. About {100-900} people "
    "came, although it was {weather}. {person} {surname}, a {job}, opened it with a speech about {topic}. "
    "Then {problem}, but {fix}. The organisers collected ${500-9000} for a new {place2}.",
    "{person} {surname} is a {job} who lives in {city}. At the age of {12-40}, {person} began with "
    "{hobby} and soon spent {2-20} hours a week on it. In {month}, {person} won a prize of ${100-900} at "
    "the {event} in {city2}. The money was spent on a {colour} {thing} and on a dinner of {dish} for "
    "{4-12} friends.",
    "The {place} of {city} will be closed from {1-28} {month} until {1-28} {month2}. The works cost "
    "${20-90},000 and were made necessary when {problem}. {person} {surname}, who has led it for {2-25} "
    "years, hopes for {100-900} visitors a day after the reopening, which begins with a {event}.",
    "A survey asked {200-900} people in {country} about their free time. {20-50} percent named {hobby}, "
    "{10-20} percent {hobby2} and {3-9} percent {hobby3}. On a {weather} {day}, most stay at home and "
    "cook {dish}. {person} {surname}, who led the survey, was surprised by the interest in {topic}.",
)
PARAGRAPH_TASKS = (
    "Summarise the text in one sentence.",
    "Summarise the text in two sentences.",
    "Give a title for the text and name its main point.",
    "List the three most important facts of the text.",
    "Who is mentioned in the text, and what did this person do?",
    "Which numbers are in the text, and what do they mean?",
    "Where and when does the text take place?",
    "Write a question about the text and answer it.",
    "Rewrite the text for a child.",
)


def paragraph_task(rng: random.Random) -> str:
    """A generated news item with a wish for a summary or an answer."""
    return f"{fill(rng.choice(PARAGRAPHS), rng)}\n\n{rng.choice(PARAGRAPH_TASKS)}"


def rewriting(rng: random.Random) -> str:
    """A sentence to change."""
    return fill(rng.choice(REWRITING).replace("{sentence}", rng.choice(SENTENCES)), rng)


def chosen_from(templates: tuple[str, ...]) -> Callable[[random.Random], str]:
    """A kind of request that fills one of `templates`."""
    return lambda rng: fill(rng.choice(templates), rng)


KINDS: dict[str, Callable[[random.Random], str]] = {
    "explanation": chosen_from(EXPLANATIONS),
    "advice": chosen_from(ADVICE),
    "writing": chosen_from(WRITING),
    "rewriting": rewriting,
    "comparison": chosen_from(COMPARISONS),
    "code": chosen_from(CODE),
    "paragraph": paragraph_task,
    "arithmetic": problem,
}


def varied(count: int, seed: int) -> list[Prompt]:
    """`count` distinct prompts, the kinds in turn; each has its kind as its domain."""
    each = -(-count // len(KINDS))
    by_kind = [of_kind(kind, each, seed) for kind in KINDS]
    return [prompt for row in zip(*by_kind, strict=True) for prompt in row][:count]


def of_kind(kind: str, count: int, seed: int) -> list[Prompt]:
    """`count` distinct prompts of one of `KINDS`, which is their domain."""
    return [ask(kind, text) for text in distinct(count, seed, KINDS[kind])]
