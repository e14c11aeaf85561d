"""Everyday arithmetic word problems."""

import random

from hotdraft.pipeline.traffic.generators.filling import distinct, fill
from hotdraft.pipeline.traffic.prompts import Prompt, ask

PROBLEMS = (
    "{person} buys {2-12} {goods} at ${2-15} each and {2-9} {goods2} at ${3-20} each. How much does "
    "{person} pay in total?",
    "A {shop} sells {goods} for ${2-18} each. {person} buys {3-14} of them and pays with a ${200-400} gift "
    "card. How much is left on the card?",
    "{person} has ${40-95}. After buying {2-5} {goods} at ${3-8} each, how much money does {person} have left?",
    "At the {shop}, {goods} come in packs of {4-12}. {person} needs {50-150} of them. How many packs must "
    "{person} buy?",
    "A {shop} had {120-400} {goods} in stock. It sold {20-60} on Monday and {15-55} on Tuesday. How many are left?",
    "A recipe for {dish} serves {2-4} people and uses {100-300} grams of {food}. How many grams of {food} "
    "are needed for {6-20} people?",
    "{person} bakes {dish} with {2-6} cups of {food} per batch. How many cups of {food} are needed for "
    "{3-11} batches?",
    "To cook {dish} for a party, {person} needs {3-9} kilograms of {food}. One kilogram costs ${2-12}. What "
    "does the {food} cost?",
    "A jar holds {250-900} grams of {food}. {person} uses {20-45} grams every day. After {3-5} days, how "
    "much {food} is left?",
    "{person} drives from {city} to {city2} at {40-110} kilometres per hour. The trip takes {2-9} hours. "
    "How far apart are the two cities?",
    "The train from {city} to {city2} covers {180-720} kilometres in {2-6} hours. What is its average speed?",
    "{person} cycles {6-25} kilometres to work and the same distance back, {3-6} days a week. How many "
    "kilometres is that in {2-8} weeks?",
    "A car uses {5-9} litres of fuel per 100 kilometres. How many litres does it need for the {300-900} "
    "kilometres from {city} to {city2}?",
    "A bus leaves {city} with {15-48} passengers. At the first stop {3-12} get off and {2-14} get on. At "
    "the second stop {4-15} get on. How many passengers are on the bus now?",
    "{person} saves ${5-60} every week. How much has {person} saved after {6-30} weeks?",
    "{person} wants to buy a {thing} that costs ${150-900}. {person} saves ${10-45} a week. How many weeks "
    "does it take?",
    "{person} earns ${12-35} an hour as a {job} and works {4-9} hours a day. How much does {person} earn in "
    "{3-6} days?",
    "{person} puts ${200-900} in a bank at {2-8} percent simple interest per year. How much interest is "
    "earned in {2-6} years?",
    "{person} had ${100-400} in savings, spent ${20-80} on a {thing} and then earned ${30-150}. How much "
    "does {person} have now?",
    "{person} shares {24-96} {goods} equally among {3-8} friends. How many does each friend get, and how "
    "many are left over?",
    "{person} and {person2} split a bill of ${30-160} for {dish}. {person} pays ${5-20} more than "
    "{person2}. How much does each pay?",
    "{person} gives {3-15} {goods} to {person2} and {4-12} to {person3}, and keeps {5-30}. How many {goods} "
    "did {person} have at first?",
    "{person} has {2-6} times as many {goods} as {person2}. {person2} has {4-25}. How many do they have together?",
    "A {thing} costs ${40-600}. It is on sale with {10-60} percent off. What is the sale price?",
    "The price of a {thing} rose from ${50-100} to ${110-200}. By what percentage did it rise?",
    "In a class of {20-40} pupils, {10-90} percent like {dish}. About how many pupils is that?",
    "{person} leaves a {5-25} percent tip on a {dish} that cost ${12-80}. How much is the tip?",
    "Of {200-900} visitors to the {place}, {10-45} percent came by bus. How many came by bus?",
    "{person} starts {hobby} at {1-8}:{10-55} pm and goes on for {35-140} minutes. At what time does "
    "{person} stop?",
    "{person} spends {15-50} minutes a day on {hobby}. How many hours is that in {2-8} weeks?",
    "A visit to the {place} starts at 9:{10-55} and ends at 11:{10-55}. How many minutes does it last?",
    "{person} reads {12-45} pages a day. How many days does a book of {180-600} pages take?",
    "{person} is {6-20} years old. {person2} is {2-4} times as old. How old will {person2} be in {3-15} years?",
    "A garden is {5-30} metres long and {4-20} metres wide. {person} builds a fence around it at ${4-18} "
    "per metre. What does the fence cost?",
    "The floor of a {place} is {4-20} metres by {3-15} metres. One tile covers {1-4} square metres. How "
    "many tiles are needed?",
    "{person} plants {4-15} rows of {6-24} {plant}. {3-20} of them do not grow. How many {plant} grow?",
    "A farm has {10-60} {animal} and {5-40} {animal2}. Each one eats {2-6} kilograms of feed a day. How "
    "much feed is needed for a week?",
    "Tickets for the {place} cost ${8-25} for adults and ${3-9} for children. What do {2-5} adults and "
    "{2-9} children pay?",
    "{person} scored {40-99}, {40-99} and {40-99} points in three rounds of {hobby}. What is the average score?",
    "A machine makes {12-90} {goods} per minute. How many does it make in {2-9} hours?",
    "{person} fills a tank of {120-900} litres with a hose that gives {4-30} litres a minute. How long does "
    "it take?",
    "{person} ran {2-9} kilometres on Monday and {2-5} times that on Saturday. How many kilometres in total?",
    "A box of {goods} weighs {2-15} kilograms and a box of {goods2} weighs {3-12} kilograms. What do {3-9} "
    "boxes of each weigh together?",
    "{person} types {30-90} words a minute. How long does a text of {600-3000} words take?",
)

REQUESTS = (
    "Give a short worked answer.",
    "Show the calculation in one or two lines.",
    "Work it out briefly, then state the answer.",
    "Solve it step by step, in a few short lines.",
    "Answer briefly with the calculation.",
)


def problem(rng: random.Random) -> str:
    """One problem with the wish for a short worked answer."""
    return f"{fill(rng.choice(PROBLEMS), rng)} {rng.choice(REQUESTS)}"


def arithmetic(count: int, seed: int) -> list[Prompt]:
    """`count` distinct problems of shops, recipes, trips, savings, sharing, percentages and time."""
    return [ask("arithmetic", text) for text in distinct(count, f"arithmetic {seed}", problem)]
