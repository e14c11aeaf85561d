"""Business areas that questions over a schema are about."""

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
