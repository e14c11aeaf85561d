"""Words and business areas that the generators of prompts draw from."""

# fmt: off
WORDS: dict[str, tuple[str, ...]] = {
    "person": (
        "Amara", "Anton", "Aisha", "Ben", "Bianca", "Bruno", "Carla", "Chen", "Daria", "Diego", "Elif",
        "Emil", "Farid", "Fiona", "Gita", "Gustav", "Hana", "Hugo", "Ines", "Ivan", "Jamal", "Jana",
        "Jonas", "Kaito", "Katja", "Kofi", "Lara", "Leo", "Lin", "Lukas", "Maja", "Marco", "Mei", "Milo",
        "Nadia", "Nils", "Noor", "Olga", "Omar", "Oskar", "Paula", "Pedro", "Priya", "Quinn", "Rania",
        "Raul", "Rosa", "Ruben", "Sara", "Selim", "Sofia", "Stefan", "Tara", "Theo", "Tomas", "Uma", "Vera",
        "Viktor", "Wanda", "Yara", "Yusuf", "Zane", "Zoe",
    ),
    "surname": (
        "Abbott", "Becker", "Castillo", "Dogan", "Eriksen", "Fischer", "Greco", "Haddad", "Ivanov",
        "Jensen", "Kowalski", "Lindqvist", "Moreau", "Nakamura", "Okafor", "Petrov", "Quispe", "Rossi",
        "Silva", "Tanaka", "Ueda", "Vargas", "Weber", "Xu", "Yilmaz", "Zapata",
    ),
    "city": (
        "Accra", "Ankara", "Athens", "Bergen", "Berlin", "Bogota", "Boston", "Cairo", "Dakar", "Delhi",
        "Dublin", "Geneva", "Hamburg", "Hanoi", "Helsinki", "Izmir", "Kyoto", "Lagos", "Lima", "Lisbon",
        "Lyon", "Madrid", "Manila", "Milan", "Montreal", "Nairobi", "Oslo", "Paris", "Porto", "Prague",
        "Quito", "Riga", "Rome", "Seoul", "Sofia", "Sydney", "Tallinn", "Tokyo", "Toronto", "Vienna",
        "Warsaw", "Zagreb", "Zurich",
    ),
    "country": (
        "Argentina", "Austria", "Brazil", "Canada", "Chile", "Denmark", "Egypt", "Ethiopia", "Finland",
        "France", "Ghana", "Greece", "Iceland", "India", "Indonesia", "Ireland", "Italy", "Japan", "Kenya",
        "Mexico", "Morocco", "Nepal", "Norway", "Peru", "Poland", "Portugal", "Senegal", "Spain", "Sweden",
        "Thailand", "Tunisia", "Turkey", "Uruguay", "Vietnam",
    ),
    "goods": (
        "notebooks", "pencils", "candles", "mugs", "postcards", "stickers", "marbles", "bottles of juice",
        "light bulbs", "batteries", "balloons", "cushions", "buttons", "T-shirts", "socks", "scarves",
        "towels", "plates", "spoons", "erasers", "magnets", "puzzles", "toy cars", "brushes", "tea boxes",
        "chocolate bars", "muffins", "bagels", "apples", "oranges", "lemons", "mangoes", "eggs",
        "sandwiches", "cupcakes", "cookies", "tomatoes", "onions", "cucumbers", "flower pots",
        "seed packets", "ropes", "screws", "bricks", "tiles", "lamps", "umbrellas", "bracelets", "keyrings",
        "comic books",
    ),
    "shop": (
        "bakery", "bookshop", "hardware store", "toy shop", "grocery", "market stall", "stationery shop",
        "garden centre", "gift shop", "corner shop", "museum shop", "department store", "craft shop",
        "farm shop", "pet shop",
    ),
    "dish": (
        "vegetable soup", "pancakes", "lentil curry", "fried rice", "pizza", "apple pie", "lasagne",
        "banana bread", "pumpkin soup", "tomato salad", "bean chili", "mushroom risotto", "potato gratin",
        "carrot cake", "fish stew", "noodle soup", "chicken pie", "falafel", "dumplings", "paella",
        "omelette", "fruit salad", "cornbread", "stuffed peppers", "couscous", "ramen", "cheesecake",
        "tacos", "moussaka", "ratatouille",
    ),
    "food": (
        "flour", "rice", "sugar", "lentils", "oats", "cheese", "butter", "carrots", "potatoes", "beans",
        "mushrooms", "spinach", "chickpeas", "walnuts", "honey", "yoghurt", "pasta", "raisins", "barley",
        "almonds", "corn", "peas", "pumpkin", "tofu", "basil", "garlic", "ginger", "olives", "cabbage",
        "coconut",
    ),
    "thing": (
        "bicycle", "tablet", "guitar", "tent", "camera", "jacket", "desk", "printer", "skateboard",
        "telescope", "backpack", "coffee machine", "watch", "violin", "keyboard", "sofa", "kayak", "drone",
        "heater", "blender", "bookshelf", "suitcase", "microscope", "sewing machine", "fridge", "scooter",
        "headphones", "carpet", "helmet", "piano",
    ),
    "job": (
        "gardener", "teacher", "nurse", "plumber", "waiter", "tutor", "painter", "driver", "baker",
        "carpenter", "librarian", "electrician", "mechanic", "photographer", "cleaner", "translator",
        "cook", "receptionist", "tailor", "guide", "architect", "dentist", "pilot", "farmer", "journalist",
        "programmer", "fisher", "vet", "musician", "firefighter",
    ),
    "hobby": (
        "chess", "painting", "swimming", "running", "knitting", "gardening", "dancing", "archery",
        "cooking", "bowling", "climbing", "pottery", "yoga", "drawing", "sailing", "darts", "hiking",
        "singing", "table tennis", "badminton", "cycling", "juggling", "birdwatching", "baking",
        "photography", "woodworking", "origami", "skating", "fishing", "calligraphy",
    ),
    "place": (
        "museum", "zoo", "theatre", "library", "swimming pool", "aquarium", "castle", "science centre",
        "botanical garden", "cinema", "stadium", "town hall", "sports hall", "gallery", "planetarium",
        "market hall", "community centre", "concert hall", "ice rink", "train station", "lighthouse",
        "harbour", "old mill", "observatory", "playground",
    ),
    "plant": (
        "tulips", "roses", "sunflowers", "cabbages", "bean plants", "strawberries", "lavender bushes",
        "apple trees", "carrots", "peppers", "tomatoes", "herbs", "pumpkins", "lilies", "berries",
        "pine trees", "lettuces", "olive trees", "onions", "daisies",
    ),
    "animal": (
        "cows", "goats", "sheep", "horses", "ducks", "hens", "rabbits", "donkeys", "geese", "pigs",
        "llamas", "turkeys", "ponies", "alpacas", "oxen",
    ),
    "creature": (
        "fox", "owl", "dragon", "rabbit", "bear", "turtle", "crow", "whale", "squirrel", "wolf", "robot",
        "cat", "mouse", "hedgehog", "seal", "giant", "snail", "parrot", "deer", "octopus", "beaver",
        "penguin", "frog", "lion", "spider",
    ),
    "object": (
        "golden key", "broken clock", "old map", "glass bottle", "red umbrella", "wooden boat",
        "silver coin", "lost letter", "music box", "magic lantern", "paper crown", "blue stone",
        "rusty bicycle", "tiny door", "empty suitcase", "singing kettle", "torn photograph", "star chart",
        "wool hat", "secret recipe", "brass compass", "violin", "snow globe", "mysterious egg",
        "green scarf",
    ),
    "mood": (
        "cheerful", "sad", "funny", "calm", "mysterious", "hopeful", "exciting", "gentle", "surprising",
        "heart-warming", "strange", "brave", "dreamy", "silly", "quiet",
    ),
    "topic": (
        "photosynthesis", "gravity", "the water cycle", "volcanoes", "earthquakes", "tides", "rainbows",
        "lightning", "magnetism", "electricity", "sound waves", "atoms", "DNA", "cells", "evolution",
        "vaccines", "antibiotics", "bacteria", "the immune system", "digestion", "sleep", "memory",
        "the heart", "the lungs", "the skeleton", "nerves", "muscles", "vitamins", "proteins", "caffeine",
        "allergies", "black holes", "the Moon", "comets", "the Sun", "the seasons", "the solar system",
        "satellites", "telescopes", "rockets", "glaciers", "deserts", "rainforests", "coral reefs",
        "wetlands", "soil", "fossils", "dinosaurs", "bees", "migration of birds", "hibernation",
        "camouflage", "composting", "recycling", "solar panels", "wind turbines", "batteries",
        "nuclear power", "heat pumps", "climate change", "the ozone layer", "acid rain", "deforestation",
        "fermentation", "yeast", "salt", "glass", "steel", "concrete", "plastic", "rubber", "paper making",
        "the printing press", "the steam engine", "the bicycle", "the telephone", "radio", "television",
        "the internet", "email", "search engines", "encryption", "passwords", "computer viruses",
        "machine learning", "robots", "touch screens", "GPS", "barcodes", "cameras", "lasers", "X-rays",
        "microwaves", "refrigerators", "elevators", "bridges", "dams", "canals", "lighthouses",
        "submarines", "aeroplanes", "hot-air balloons", "electric cars", "trains", "inflation",
        "interest rates", "taxes", "insurance", "supply and demand", "trade", "budgets", "stock markets",
        "banks", "credit cards", "democracy", "constitutions", "elections", "courts", "human rights",
        "the Renaissance", "ancient Egypt", "ancient Rome", "the Silk Road", "the Industrial Revolution",
        "the Olympic Games", "castles", "pyramids", "calendars", "maps", "time zones", "the alphabet",
        "proverbs", "poetry", "opera", "jazz", "ballet", "theatre masks", "impressionism", "sculpture",
        "photography", "fairy tales", "chess", "football", "yoga", "meditation", "empathy", "friendship",
        "teamwork", "curiosity", "prime numbers", "fractions", "probability", "percentages", "symmetry",
        "the number zero", "triangles", "pi", "averages", "graphs",
    ),
    "term": (
        "metaphor", "ecosystem", "hypothesis", "democracy", "inflation", "algorithm", "habitat", "molecule",
        "orbit", "erosion", "nutrient", "catalyst", "mammal", "predator", "paradox", "irony", "budget",
        "monopoly", "nomad", "harvest", "treaty", "dialect", "rhythm", "melody", "sculpture", "horizon",
        "peninsula", "glacier", "delta", "drought", "epidemic", "vaccine", "reflex", "instinct", "momentum",
        "friction", "density", "velocity", "voltage", "circuit", "software", "bandwidth", "firewall",
        "prototype", "patent", "merger", "dividend", "mortgage", "invoice", "deadline", "consensus",
        "compromise", "diplomacy", "archive", "biography", "fable", "sonnet", "satire", "synonym", "adverb",
        "pronoun", "syllable", "prefix", "parallel", "polygon", "ratio", "variable", "equation", "estimate",
        "symmetry", "volume", "perimeter", "resilience", "gratitude", "integrity", "curiosity", "nostalgia",
        "stamina", "intuition", "tolerance", "pollination", "camouflage", "migration", "fossil", "mineral",
        "crater", "eclipse", "galaxy", "nebula", "plankton", "fungus", "enzyme", "hormone", "artery",
        "retina", "tendon", "antibody", "placebo", "symptom",
    ),
    "goal": (
        "sleep better", "learn a new language", "save money", "eat more vegetables", "run a first marathon",
        "stay focused while studying", "prepare for a job interview", "grow tomatoes on a balcony",
        "reduce food waste", "write a clear report", "remember names", "speak in public",
        "pack for a long trip", "take better photos", "keep houseplants alive", "organise a small kitchen",
        "make new friends in a new city", "stay calm under stress", "read more books", "start a blog",
        "lower the heating bill", "look after an old bicycle", "plan a birthday party",
        "teach a child to read", "work from home", "meet a deadline", "give useful feedback",
        "avoid back pain", "drink more water", "walk more every day", "choose a good book", "host a dinner",
        "train a puppy", "adopt a cat", "clean a carpet", "bake good bread", "learn the guitar",
        "practise drawing", "begin with yoga", "spend less time on the phone", "prepare for an exam",
        "write a thank-you card", "plan a family holiday", "repair torn clothes", "recycle correctly",
        "keep a diary", "stay warm in winter", "stay cool in summer", "protect an online account",
        "back up photos", "find a lost key", "run a meeting", "welcome a new colleague",
        "sell old furniture", "start a vegetable garden", "keep bees", "stop procrastinating",
        "wake up early", "cook for a large group", "study in a noisy house",
    ),
    "email": (
        "ask for a day off on Friday", "move a meeting to next week",
        "thank a colleague for help with a project", "apologise for a late delivery",
        "invite the team to a lunch", "ask a landlord to repair a heater",
        "ask for a refund for a broken product", "confirm an appointment",
        "remind a client of an unpaid invoice", "introduce a new team member",
        "ask a teacher for more time on homework", "cancel a gym membership",
        "ask for feedback on a report", "congratulate a friend on a new job", "report a lost parcel",
        "ask a hotel about a late check-in", "book a table for a group", "offer help to a neighbour",
        "ask for a letter of recommendation", "announce a change of office hours",
        "decline an invitation politely", "share notes from a meeting", "ask a supplier for a price list",
        "say goodbye to colleagues", "ask about the status of an application",
        "report a problem with the internet connection", "ask a library to extend a loan",
        "thank a host for a nice weekend", "suggest a new idea to a manager",
        "ask a shop about opening hours",
    ),
    "tone": (
        "friendly", "formal", "short", "polite", "warm", "confident", "simple", "casual", "professional",
        "cheerful",
    ),
    "audience": (
        "a ten-year-old", "a beginner", "a curious teenager", "a grandparent", "a new student",
        "a busy manager", "a tourist", "someone who has never heard of it", "a school class", "a friend",
    ),
    "length": (
        "in two sentences", "in three sentences", "in one short paragraph", "in simple words",
        "in about 50 words", "briefly", "with one example", "in one sentence",
    ),
    "language": (
        "French", "Spanish", "German", "Italian", "Portuguese", "Dutch", "Swedish", "Turkish", "Polish",
        "Indonesian",
    ),
    "phrase": (
        "Good morning, how are you?", "Where is the train station?", "I would like a cup of tea.",
        "The weather is nice today.", "How much does this cost?", "I am learning to cook.",
        "My sister lives near the sea.", "Can you help me, please?", "We will arrive at eight o'clock.",
        "The children are playing in the garden.", "I lost my keys yesterday.",
        "Thank you for the beautiful gift.", "She reads a book every week.",
        "The shop is closed on Sunday.", "Do you have a room for two nights?",
        "Please turn left at the bridge.", "He works in a large hospital.", "It is raining again.",
        "I am hungry and tired.", "Our teacher is very kind.", "The soup is too hot.",
        "See you tomorrow at the market.", "My favourite colour is green.",
        "The bus was late this morning.", "They bought a new house.", "I do not understand the question.",
        "The cat sleeps on the chair.", "Happy birthday, my friend!", "Could you speak more slowly?",
        "The museum opens at nine.",
    ),
    "weather": (
        "rainy", "sunny", "foggy", "stormy", "windy", "snowy", "warm", "cold", "cloudy", "frosty",
    ),
    "day": (
        "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday",
    ),
    "month": (
        "January", "February", "March", "April", "May", "June", "July", "August", "September", "October",
        "November", "December",
    ),
    "colour": (
        "red", "blue", "green", "yellow", "purple", "orange", "white", "black", "grey", "brown", "pink",
        "silver",
    ),
    "event": (
        "book fair", "street festival", "charity run", "science fair", "flower show", "school concert",
        "film night", "cooking contest", "farmers' market", "art exhibition", "chess tournament",
        "boat race", "clean-up day", "jazz evening", "open day", "bicycle parade", "poetry reading",
        "lantern walk", "bake sale", "craft market",
    ),
    "problem": (
        "the lights went out", "it started to rain", "the main speaker was ill",
        "the tickets sold out in an hour", "a water pipe burst", "the train was late",
        "the microphone failed", "more people came than expected", "the food ran out early",
        "a dog ran across the stage", "the tent was blown over", "the start was delayed by two hours",
    ),
    "fix": (
        "volunteers brought candles", "everyone moved indoors", "a local teacher stepped in",
        "a second date was added", "the fire brigade helped", "a bus was rented",
        "the choir sang without it", "neighbours carried extra chairs", "a nearby bakery gave bread",
        "the children laughed and the show went on", "it was tied down with ropes",
        "the band played longer",
    ),
    "compare": (
        "tea and coffee", "cats and dogs", "trains and planes", "books and films", "cities and villages",
        "summer and winter", "running and swimming", "email and phone calls", "renting and buying a home",
        "gas and electric stoves", "paper books and e-books", "oil paint and watercolour",
        "butter and olive oil", "rice and pasta", "wool and cotton", "wood and metal",
        "desktop computers and laptops", "bicycles and scooters", "public transport and cars",
        "rivers and lakes", "frogs and toads", "moths and butterflies", "comets and asteroids",
        "viruses and bacteria", "solar and wind power", "novels and short stories",
        "jazz and classical music", "football and basketball", "violins and cellos", "cash and cards",
        "debit cards and credit cards", "online and classroom learning", "remote and office work",
        "fresh and frozen vegetables", "bread and cake", "crocodiles and alligators", "weather and climate",
        "mass and weight", "speed and velocity", "fiction and non-fiction", "similes and metaphors",
        "islands and peninsulas", "planets and stars", "gold and silver", "mushrooms and plants",
        "lists and tuples in Python", "while loops and for loops", "compilers and interpreters",
        "hardware and software", "hiking and climbing",
    ),
    "function": (
        "returns the sum of a list of numbers", "counts the vowels in a string", "reverses a string",
        "checks whether a number is prime", "returns the largest number of a list",
        "converts Celsius to Fahrenheit", "counts how often each word occurs in a text",
        "removes duplicates from a list", "checks whether a word is a palindrome",
        "computes the factorial of a number", "returns the first n Fibonacci numbers",
        "merges two sorted lists", "computes the average of a list", "finds the longest word in a sentence",
        "checks whether a year is a leap year", "converts minutes to hours and minutes",
        "returns the even numbers of a list", "computes the area of a circle",
        "joins a list of words with commas", "counts the digits of a number",
        "computes the greatest common divisor of two numbers", "sorts a list of names by length",
        "finds the second largest number of a list", "capitalises every word of a sentence",
        "multiplies two matrices", "flattens a list of lists", "returns the index of a value in a list",
        "checks whether two words are anagrams", "swaps the keys and values of a dictionary",
        "computes compound interest", "rounds every number of a list", "generates a random password",
        "counts the lines of a file", "removes punctuation from a text",
        "splits a list into chunks of size n", "converts a binary string to an integer",
        "computes the median of a list", "validates an email address", "rotates a list by n places",
        "returns the squares of the numbers from 1 to n",
    ),
    "style": (
        "Include a docstring", "Include one example call", "Keep it short", "Add a short explanation",
        "Use clear variable names", "Use a for loop", "Add type hints", "Handle empty input",
        "Write it in as few lines as possible", "Add comments",
    ),
    "group": (
        "fruits", "vegetables", "musical instruments", "kitchen tools", "wild animals", "sea animals",
        "birds", "insects", "trees", "flowers", "sports", "school subjects", "weather words", "colours",
        "means of transport", "pieces of furniture", "clothes for winter", "things to take to the beach",
        "garden tools", "dances", "spices", "drinks", "emotions", "parts of a car", "parts of the body",
        "board games", "professions", "kinds of bread", "rivers", "mountains", "inventions", "metals",
        "languages", "holidays", "shapes",
    ),
    "company": (
        "a bakery", "a bicycle repair shop", "a language school", "a small hotel", "a tea brand",
        "an online bookshop", "a dog-walking service", "a music school", "a flower shop", "a travel agency",
        "a yoga studio", "a toy maker", "a coffee truck", "a repair cafe", "a gardening app",
        "a weather app", "a recipe app", "a chess club", "a film club", "a choir",
    ),
    "advice": (
        "My neighbour plays loud music at night", "I cannot decide between two job offers",
        "My friend forgot my birthday", "I feel nervous before exams", "My houseplant has yellow leaves",
        "I always arrive late", "My colleague takes credit for my work", "I want to change my career",
        "My child refuses to eat vegetables", "I spend too much on takeaway food",
        "My laptop has become slow", "I cannot fall asleep before midnight", "My bicycle squeaks",
        "I forgot an important appointment", "My bread never rises", "I get bored when I run",
        "My desk is always untidy", "I moved to a town where I know nobody", "My cat scratches the sofa",
        "I am afraid of flying",
    ),
}
"""Lists by the name of the slot they fill, as in `{person}`."""

# fmt: on
AREAS = (
    (
        "customers: name person, city city, age 18-80, joined_date date\n"
        "products: title goods, category toys/books/garden/kitchen/sports, price 2-300, stock 0-500\n"
        "orders: customer_name person, customer_id key, product_id key, quantity 1-20, total 5-900, "
        "status paid/shipped/cancelled/open, ordered_date date"
    ),
    (
        "authors: name person, country country, books_written 1-60, born_date date\n"
        "books: title object, author_id key, genre novel/poetry/history/science/travel, pages 60-900, "
        "copies 1-20\n"
        "loans: reader_name person, book_id key, days 1-60, branch city, loaned_date date"
    ),
    (
        "patients: name person, city city, age 1-95, insurer public/private/none, admitted_date date\n"
        "doctors: name person, department cardiology/surgery/paediatrics/neurology, years_of_service "
        "1-40, salary 3000-12000\n"
        "visits: reason problem, patient_id key, doctor_id key, duration_minutes 5-120, cost 20-900, "
        "outcome healed/referred/follow-up, visited_date date"
    ),
    (
        "students: name person, grade 1-12, age 6-19, home_city city, enrolled_date date\n"
        "teachers: name person, subject maths/physics/art/music/biology, salary 2500-7000, "
        "years_of_service 1-40\n"
        "courses: title topic, teacher_id key, room_number 1-90, credits 1-12, level "
        "beginner/intermediate/advanced"
    ),
    (
        "airports: name city, country country, runways 1-6, passengers_per_day 500-90000\n"
        "flights: flight_number term, origin city, destination city, distance 150-9000, delay_minutes "
        "0-300, departed_date date\n"
        "pilots: name person, base city, flight_hours 200-20000, age 23-65, licensed_date date"
    ),
    (
        "members: name person, city city, age 16-80, plan basic/plus/premium, joined_date date\n"
        "trainers: name person, speciality hobby, hourly_rate 20-120, rating 1-5\n"
        "classes: title hobby, trainer_id key, capacity 5-60, duration_minutes 20-120, weekday day"
    ),
    (
        "dishes: name dish, category starter/main/dessert/drink, price 3-60, calories 80-1500\n"
        "waiters: name person, shift morning/evening/night, tips 5-300, hired_date date\n"
        "bookings: guest_name person, guests 1-14, hour 11-23, status confirmed/cancelled/waiting, "
        "booked_date date"
    ),
    (
        "clients: name person, country country, age 18-95, segment private/business/student\n"
        "accounts: owner_name person, client_id key, kind savings/checking/loan, balance 0-90000, "
        "opened_date date\n"
        "transfers: purpose object, account_id key, amount 1-9000, fee 0-40, currency EUR/USD/JPY/TRY, "
        "sent_date date"
    ),
    (
        "movies: title object, director person, genre comedy/drama/thriller/animation, minutes 60-210, "
        "rating 1-10, released_date date\n"
        "actors: name person, country country, age 6-90, awards 0-20\n"
        "screenings: hall place, movie_id key, language language, seats_sold 0-400, ticket_price 4-25, "
        "shown_date date"
    ),
    (
        "guests: name person, country country, nights 1-30, loyalty_points 0-9000\n"
        "rooms: label colour, view sea/garden/street/mountain, beds 1-6, price_per_night 30-600\n"
        "reservations: guest_name person, guest_id key, room_id key, total 40-5000, channel "
        "web/phone/agency, arrival_date date"
    ),
    (
        "fields: name colour, crop plant, hectares 1-90, yield_tonnes 1-400\n"
        "harvests: worker_name person, field_id key, weight_kg 20-9000, weather weather, harvested_date "
        "date\n"
        "machines: model thing, brand surname, hours_used 0-9000, price 500-90000, bought_date date"
    ),
    (
        "teams: name creature, city city, wins 0-60, founded_year 1890-2020\n"
        "players: name person, team_id key, position goalkeeper/defender/midfielder/forward, goals "
        "0-60, age 16-40\n"
        "matches: stadium place, team_id key, spectators 100-90000, result win/draw/loss, played_date "
        "date"
    ),
    (
        "artworks: title object, artist person, style modern/baroque/abstract/realist, year 1500-2020, "
        "value 900-900000\n"
        "exhibitions: title topic, room place, visitors 50-90000, ticket_price 0-30, opened_date date\n"
        "donations: donor_name person, exhibition_id key, amount 10-90000, country country, given_date "
        "date"
    ),
    (
        "warehouses: name surname, city city, capacity 100-9000, workers 2-300\n"
        "shipments: item goods, warehouse_id key, weight_kg 1-2000, destination city, shipped_date "
        "date\n"
        "drivers: name person, licence car/truck/bus, trips 0-900, kilometres 100-90000, hired_date date"
    ),
    (
        "employees: name person, department sales/finance/research/support, salary 2000-12000, age "
        "18-66, hired_date date\n"
        "projects: title topic, lead_id key, budget 1000-900000, status planned/running/finished, "
        "started_date date\n"
        "trainings: title goal, employee_id key, hours 1-40, location city, held_date date"
    ),
    (
        "stations: name surname, source solar/wind/hydro/gas, output_megawatts 1-900, workers 2-300, "
        "opened_date date\n"
        "meters: owner_name person, station_id key, district city, usage_kwh 10-9000, reading_year "
        "2015-2025\n"
        "repairs: part thing, station_id key, cost 50-90000, engineer person, repaired_date date"
    ),
    (
        "artists: name person, country country, genre jazz/rock/folk/pop, followers 100-900000, "
        "debut_date date\n"
        "albums: title object, artist_id key, label surname, tracks 4-30, sales 100-900000, "
        "released_date date\n"
        "concerts: venue place, artist_id key, city city, tickets_sold 50-90000, price 5-200, "
        "played_date date"
    ),
    (
        "houses: street surname, city city, rooms 1-12, price 50000-900000, built_year 1890-2024\n"
        "agents: name person, office city, sales 0-90, commission 1-9, hired_date date\n"
        "viewings: visitor_name person, house_id key, agent_id key, rating 1-10, interest "
        "low/medium/high, viewed_date date"
    ),
    (
        "subscribers: name person, plan basic/family/business, monthly_fee 5-90, city city, joined_date "
        "date\n"
        "calls: receiver person, subscriber_id key, minutes 1-180, country country, called_date date\n"
        "devices: model thing, subscriber_id key, brand surname, storage_gb 16-1024, price 50-1500, "
        "sold_date date"
    ),
    (
        "volunteers: name person, city city, hours 1-900, role driver/cook/teacher/helper, joined_date "
        "date\n"
        "campaigns: title goal, region country, target_amount 500-90000, raised_amount 0-90000, "
        "started_date date\n"
        "gifts: donor_name person, campaign_id key, amount 5-9000, method card/cash/transfer, "
        "given_date date"
    ),
)
"""A business area each: a table a line, with its columns and what they hold: a key, a date, a range of
numbers, some words written out, or a list of `WORDS`. The first column names the row."""
