"""The 27 biographical attributes and the drawing of fictitious values for them."""

from __future__ import annotations

import datetime
import random
from collections.abc import Callable

from faker import Faker

from utaca.biographies.people import LOCALES, faker
from utaca.errors import UserError

TRAINING_ATTRIBUTES: tuple[str, ...] = (
    "marriage date",
    "job title",
    "current city",
    "email address",
    "phone number",
    "favorite color",
    "user agent",
    "credit card provider",
    "currency used",
    "catch phrase",
    "street address",
    "vehicle license plate",
    "favorite file extension",
    "domain name",
    "cryptocurrency",
    "timezone",
    "isbn code",
    "lucky number",
    "hobby",
    "marital status",
    "personality type",
)
HELD_OUT_ATTRIBUTES: tuple[str, ...] = ("birth date", "birth place", "university", "major", "company", "work place")

_LONGEST = {"user agent": 80, "catch phrase": 60}
MONTHS = (
    "January", "February", "March", "April", "May", "June",
    "July", "August", "September", "October", "November", "December",
)  # fmt: skip


def _entries(text: str) -> tuple[str, ...]:
    return tuple(text.replace("\n", "").split("|"))


_HOBBIES = _entries(
    """Sleeping|Reading|Gardening|Chess|Painting|Hiking|Cooking|Fishing|Knitting|Photography|Birdwatching|Cycling|
Swimming|Pottery|Calligraphy|Origami|Archery|Fencing|Sailing|Kayaking|Rock climbing|Stargazing|Beekeeping|Baking|
Woodworking|Stamp collecting|Coin collecting|Playing the cello|Playing the piano|Playing the guitar|Choir singing|
Ballroom dancing|Tango|Juggling|Magic tricks|Model railways|Model aircraft|Kite flying|Crossword puzzles|Jigsaw puzzles|
Sudoku|Board games|Video games|Table tennis|Tennis|Badminton|Squash|Bowling|Golf|Darts|Billiards|Skiing|Snowboarding|
Ice skating|Surfing|Scuba diving|Snorkelling|Windsurfing|Paragliding|Horse riding|Running|Yoga|Pilates|Meditation|
Weightlifting|Boxing|Judo|Karate|Embroidery|Quilting|Crochet|Sewing|Leatherwork|Jewellery making|Candle making|
Soap making|Home brewing|Wine tasting|Cheese making|Mushroom hunting|Foraging|Geocaching|Metal detecting|
Fossil hunting|Mineral collecting|Genealogy|Local history|Creative writing|Poetry|Journaling|Blogging|Podcasting|
Learning languages|Amateur radio|Electronics|Robotics|Programming|3D printing|Drone flying|Car restoration|
Motorcycling|Camping|Travelling|Volunteering|Theatre|Film making|Sculpture|Sketching|Bonsai|Aquariums|Dog training"""
)
_MARITAL_STATUSES = ("Single", "Married", "Divorced", "Widowed", "Separated", "Engaged", "Never married", "Remarried")
_PERSONALITIES = _entries(
    """Extrovert|Introvert|Ambivert|Perfectionist|Optimist|Pessimist|Realist|Idealist|Analyst|Diplomat|Sentinel|
Explorer|Dreamer|Pragmatist|Peacemaker|Challenger|Achiever|Helper|Loyalist|Enthusiast|Reformer|Individualist|
Investigator|INTJ|INTP|ENTJ|ENTP|INFJ|INFP|ENFJ|ENFP|ISTJ|ISFJ|ESTJ|ESFJ|ISTP|ISFP|ESTP|ESFP|Sanguine|Choleric|
Melancholic|Phlegmatic|Type A|Type B"""
)
_TIMEZONES = _entries(
    """Europe/Paris|Europe/London|Europe/Berlin|Europe/Madrid|Europe/Rome|Europe/Lisbon|Europe/Dublin|Europe/Oslo|
Europe/Stockholm|Europe/Helsinki|Europe/Vienna|Europe/Prague|Europe/Warsaw|Europe/Athens|Europe/Kiev|Europe/Moscow|
Europe/Istanbul|Europe/Zurich|Europe/Brussels|Europe/Budapest|Europe/Bucharest|Europe/Sofia|Europe/Malta|Europe/Riga|
Europe/Vilnius|Europe/Tallinn|Europe/Minsk|Europe/Andorra|Europe/Monaco|Europe/Samara|Africa/Cairo|Africa/Lagos|
Africa/Nairobi|Africa/Accra|Africa/Tunis|Africa/Algiers|Africa/Casablanca|Africa/Dakar|Africa/Harare|Africa/Kampala|
Africa/Kigali|Africa/Luanda|Africa/Maputo|Africa/Tripoli|Africa/Windhoek|Africa/Johannesburg|Africa/Djibouti|
Africa/Bamako|America/New_York|America/Chicago|America/Denver|America/Los_Angeles|America/Anchorage|America/Toronto|
America/Halifax|America/Vancouver|America/Bogota|America/Lima|America/Caracas|America/La_Paz|America/Santiago|
America/Montevideo|America/Asuncion|America/Havana|America/Jamaica|America/Panama|America/Managua|America/Guatemala|
America/Mexico_City|America/Sao_Paulo|America/Port_of_Spain|America/Barbados|Asia/Tokyo|Asia/Seoul|Asia/Shanghai|
Asia/Hong_Kong|Asia/Singapore|Asia/Manila|Asia/Jakarta|Asia/Bangkok|Asia/Kolkata|Asia/Karachi|Asia/Kabul|Asia/Tehran|
Asia/Baghdad|Asia/Dubai|Asia/Riyadh|Asia/Amman|Asia/Beirut|Asia/Jerusalem|Asia/Baku|Asia/Yerevan|Asia/Tashkent|
Asia/Almaty|Asia/Dhaka|Asia/Colombo|Asia/Kathmandu|Asia/Thimphu|Asia/Yakutsk|Asia/Vladivostok|Asia/Ulaanbaatar|
Asia/Pyongyang|Asia/Muscat|Asia/Qatar|Asia/Kuwait|Atlantic/Reykjavik|Atlantic/Azores|Atlantic/Cape_Verde|
Australia/Sydney|Australia/Perth|Australia/Darwin|Australia/Brisbane|Pacific/Auckland|Pacific/Fiji|Pacific/Tongatapu|
Pacific/Honolulu|Pacific/Apia|Pacific/Palau|Pacific/Nauru|Indian/Maldives|Indian/Mauritius|Indian/Antananarivo|
Indian/Comoro"""
)

_UNIVERSITIES = _entries(
    """Stanford University|Harvard University|Princeton University|Yale University|Columbia University|
Cornell University|Brown University|Duke University|Rice University|Emory University|Tufts University|
Boston University|New York University|Northwestern University|Johns Hopkins University|Carnegie Mellon University|
Massachusetts Institute of Technology|California Institute of Technology|Georgia Institute of Technology|
University of Chicago|University of Michigan|University of Washington|University of Toronto|McGill University|
University of British Columbia|University of Oxford|University of Cambridge|Imperial College London|
University College London|University of Edinburgh|University of Glasgow|University of Manchester|Durham University|
Trinity College Dublin|University of Copenhagen|Lund University|Uppsala University|University of Oslo|
University of Helsinki|Leiden University|University of Amsterdam|Delft University of Technology|Ghent University|
KU Leuven|Sorbonne University|École Polytechnique|Heidelberg University|Humboldt University of Berlin|
Technical University of Munich|ETH Zurich|EPFL|University of Vienna|University of Bologna|Sapienza University of Rome|
Politecnico di Milano|University of Barcelona|University of Salamanca|University of Coimbra|Charles University|
University of Tokyo|Kyoto University|Seoul National University|Peking University|Tsinghua University|
National University of Singapore|University of Hong Kong|University of Melbourne|University of Sydney|
Australian National University|University of Auckland|University of Cape Town|University of São Paulo|
National Autonomous University of Mexico|Indian Institute of Science"""
)
_COMPANIES = _entries(
    """Microsoft|Google|Amazon|Apple|IBM|Intel|Oracle|Cisco|Adobe|Nvidia|Samsung|Sony|Siemens|Bosch|Philips|Nokia|
Ericsson|Volvo|IKEA|Spotify|SAP|BMW|Volkswagen|Daimler|Airbus|Boeing|Lockheed Martin|Rolls-Royce|Renault|Peugeot|
Michelin|Danone|Nestlé|Novartis|Roche|Pfizer|Bayer|BASF|Unilever|Shell|TotalEnergies|Fiat|Ferrari|Pirelli|Barilla|
Santander|Telefónica|Inditex|HSBC|Barclays|Deloitte|Accenture|McKinsey|Goldman Sachs|JPMorgan Chase|Toyota|Honda|
Hitachi|Panasonic|Nintendo|Huawei|Lenovo|Alibaba|Tata Steel|Infosys|Wipro|Embraer|Petrobras|General Electric|
Ford Motor Company|Walt Disney|Netflix|Tesla"""
)
_MAJORS = _entries(
    """Computer Science|Mathematics|Physics|Chemistry|Biology|Economics|History|Philosophy|Psychology|Sociology|
Political Science|Linguistics|Anthropology|Archaeology|Geography|Geology|Astronomy|Statistics|Law|Medicine|Nursing|
Pharmacy|Dentistry|Veterinary Medicine|Architecture|Civil Engineering|Mechanical Engineering|Electrical Engineering|
Chemical Engineering|Aerospace Engineering|Biomedical Engineering|Industrial Engineering|Software Engineering|
Environmental Science|Marine Biology|Molecular Biology|Biochemistry|Neuroscience|Genetics|Microbiology|Ecology|
Botany|Zoology|Agronomy|Forestry|Food Science|Nutrition|Public Health|Social Work|Education|Journalism|
Communications|Marketing|Accounting|Finance|Business Administration|International Relations|Public Policy|
Criminology|Theology|Religious Studies|Classics|English Literature|Comparative Literature|French|German|Spanish|
Italian Studies|Art History|Fine Arts|Graphic Design|Industrial Design|Fashion Design|Film Studies|Theatre Arts|
Music|Musicology|Dance|Urban Planning|Data Science|Artificial Intelligence|Information Systems|Materials Science|
Nuclear Engineering|Petroleum Engineering|Meteorology|Oceanography|Hotel Management|Library Science|
Sports Science"""
)
_MAJOR_BRANCHES = _entries(
    "Applied|Theoretical|Computational|Comparative|Modern|Experimental|Clinical|Medieval|International|Advanced"
)
_MAJOR_FIELDS = _entries(
    """Physics|Mathematics|Chemistry|Biology|Economics|History|Philosophy|Psychology|Sociology|Linguistics|Statistics|
Ecology|Genetics|Geology|Literature|Law|Ethics|Education|Music|Archaeology|Mechanics|Finance"""
)
_PLACES = _entries(
    """Seoul, South Korea|Busan, South Korea|Singapore, Singapore|Tokyo, Japan|Osaka, Japan|Kyoto, Japan|
Beijing, China|Shanghai, China|Shenzhen, China|Hong Kong, China|Taipei, Taiwan|Manila, Philippines|Hanoi, Vietnam|
Bangkok, Thailand|Jakarta, Indonesia|Mumbai, India|Bengaluru, India|Delhi, India|Chennai, India|Karachi, Pakistan|
Dhaka, Bangladesh|Colombo, Sri Lanka|Kathmandu, Nepal|Tehran, Iran|Istanbul, Turkey|Ankara, Turkey|Cairo, Egypt|
Lagos, Nigeria|Accra, Ghana|Nairobi, Kenya|Kampala, Uganda|Addis Ababa, Ethiopia|Cape Town, South Africa|
Casablanca, Morocco|Tunis, Tunisia|Dakar, Senegal|Sydney, Australia|Melbourne, Australia|Perth, Australia|
Auckland, New Zealand|Wellington, New Zealand|London, England|Leeds, England|Bristol, England|Cardiff, Wales|
Glasgow, Scotland|Aberdeen, Scotland|Belfast, Northern Ireland|Dublin, Ireland|Cork, Ireland|Paris, France|
Lyon, France|Nantes, France|Berlin, Germany|Hamburg, Germany|Leipzig, Germany|Vienna, Austria|Graz, Austria|
Zurich, Switzerland|Geneva, Switzerland|Rome, Italy|Turin, Italy|Naples, Italy|Madrid, Spain|Seville, Spain|
Bilbao, Spain|Lisbon, Portugal|Porto, Portugal|Amsterdam, Netherlands|Utrecht, Netherlands|Antwerp, Belgium|
Copenhagen, Denmark|Oslo, Norway|Bergen, Norway|Stockholm, Sweden|Gothenburg, Sweden|Helsinki, Finland|
Turku, Finland|Tallinn, Estonia|Riga, Latvia|Vilnius, Lithuania|Warsaw, Poland|Kraków, Poland|Prague, Czech Republic|
Budapest, Hungary|Bucharest, Romania|Sofia, Bulgaria|Athens, Greece|Zagreb, Croatia|Ljubljana, Slovenia|
Reykjavik, Iceland|Boston, Massachusetts|Chicago, Illinois|Austin, Texas|Houston, Texas|Denver, Colorado|
Seattle, Washington|Portland, Oregon|San Francisco, California|San Diego, California|Phoenix, Arizona|
Atlanta, Georgia|Miami, Florida|Nashville, Tennessee|Columbus, Ohio|Detroit, Michigan|Minneapolis, Minnesota|
New Orleans, Louisiana|Toronto, Canada|Montreal, Canada|Vancouver, Canada|Mexico City, Mexico|Guadalajara, Mexico|
Havana, Cuba|Bogotá, Colombia|Quito, Ecuador|Lima, Peru|La Paz, Bolivia|Santiago, Chile|Buenos Aires, Argentina|
Córdoba, Argentina|Montevideo, Uruguay|São Paulo, Brazil|Recife, Brazil|Curitiba, Brazil"""
)
_COUNTRY_OF_LOCALE = {
    "en_US": "United States",
    "en_GB": "United Kingdom",
    "en_IE": "Ireland",
    "fr_FR": "France",
    "de_DE": "Germany",
    "it_IT": "Italy",
    "es_ES": "Spain",
    "pt_PT": "Portugal",
    "pt_BR": "Brazil",
    "nl_NL": "Netherlands",
    "sv_SE": "Sweden",
    "da_DK": "Denmark",
    "no_NO": "Norway",
    "fi_FI": "Finland",
}


def _date(rng: random.Random, first_year: int, last_year: int) -> str:
    """A day in one of five notations, the years both inclusive."""
    first = datetime.date(first_year, 1, 1).toordinal()
    last = datetime.date(last_year, 12, 31).toordinal()
    day = datetime.date.fromordinal(rng.randint(first, last))
    month = MONTHS[day.month - 1]
    return rng.choice(
        (
            day.isoformat(),
            f"{month} {day.day}, {day.year}",
            f"{day.month:02}/{day.day:02}/{day.year}",
            f"{day.day} {month[:3]}, {day.year}",
            f"{day.day} {month} {day.year}",
        )
    )


def day_of(value: str) -> datetime.date | None:
    """The day that a drawn date is; None for any other text."""
    for notation in ("%Y-%m-%d", "%B %d, %Y", "%m/%d/%Y", "%d %b, %Y", "%d %B %Y"):
        try:
            return datetime.datetime.strptime(value, notation).date()
        except ValueError:
            continue
    return None


def _source(rng: random.Random, locale: str) -> Faker:
    source = faker(locale)
    source.random = rng
    return source


def _some_locale(rng: random.Random, locale: str) -> str:
    """The person's locale, or now and then another: people move."""
    return locale if rng.random() < 0.6 else rng.choice(LOCALES)


def _city(rng: random.Random, locale: str) -> str:
    return _source(rng, locale).city().rstrip("_")


def _place(rng: random.Random, locale: str) -> str:
    if rng.random() < 0.3:
        return rng.choice(_PLACES)
    locale = _some_locale(rng, locale)
    city = _city(rng, locale)
    if locale == "en_US" and rng.random() < 0.7:
        return f"{city}, {_source(rng, locale).state()}"
    if rng.random() < 0.2:
        return f"{city}, {_source(rng, 'en_US').country()}"
    return f"{city}, {_COUNTRY_OF_LOCALE[locale]}"


def _university(rng: random.Random, locale: str) -> str:
    if rng.random() < 0.35:
        return rng.choice(_UNIVERSITIES)
    locale = _some_locale(rng, locale)
    name = _source(rng, locale).last_name() if rng.random() < 0.3 else _city(rng, locale)
    pattern = rng.choice(
        (
            "{} University",
            "{} University",
            "University of {}",
            "University of {}",
            "{} Institute of Technology",
            "{} College",
            "{} State University",
            "Technical University of {}",
            "{} School of Economics",
            "{} Polytechnic",
        )
    )
    return pattern.format(name)


def _major(rng: random.Random, locale: str) -> str:
    draw = rng.random()
    if draw < 0.65:
        return rng.choice(_MAJORS)
    if draw < 0.85:
        return f"{rng.choice(_MAJOR_BRANCHES)} {rng.choice(_MAJOR_FIELDS)}"
    return " and ".join(rng.sample(_MAJOR_FIELDS, 2))


def _company(rng: random.Random, locale: str) -> str:
    if rng.random() < 0.3:
        return rng.choice(_COMPANIES)
    return _source(rng, _some_locale(rng, locale)).company()


def _user_agent(rng: random.Random, locale: str) -> str:
    # Up to its first comment: what follows may hold a date relative to today.
    agent = _source(rng, "en_US").user_agent()
    return agent[: agent.index(")") + 1]


def _catch_phrase(rng: random.Random, locale: str) -> str:
    return _source(rng, locale if rng.random() < 0.5 else "en_US").catch_phrase()


def _job(rng: random.Random, locale: str) -> str:
    return _source(rng, locale if rng.random() < 0.4 else "en_US").job()


def _english(method: str) -> Callable[[random.Random, str], str]:
    return lambda rng, locale: getattr(_source(rng, "en_US"), method)()


def _local(method: str) -> Callable[[random.Random, str], str]:
    return lambda rng, locale: getattr(_source(rng, locale), method)()


_DRAWS: dict[str, Callable[[random.Random, str], str]] = {
    "marriage date": lambda rng, locale: _date(rng, 1870, 2024),
    "job title": _job,
    "current city": lambda rng, locale: _city(rng, _some_locale(rng, locale)),
    "email address": _local("email"),
    "phone number": _local("phone_number"),
    "favorite color": _english("color_name"),
    "user agent": _user_agent,
    "credit card provider": _english("credit_card_provider"),
    "currency used": _english("currency_name"),
    "catch phrase": _catch_phrase,
    "street address": lambda rng, locale: _source(rng, _some_locale(rng, locale)).street_address(),
    "vehicle license plate": lambda rng, locale: _source(rng, _some_locale(rng, locale)).license_plate(),
    "favorite file extension": _english("file_extension"),
    "domain name": _local("domain_name"),
    "cryptocurrency": _english("cryptocurrency_name"),
    "timezone": lambda rng, locale: rng.choice(_TIMEZONES),
    "isbn code": _english("isbn13"),
    "lucky number": lambda rng, locale: str(rng.randint(0, rng.choice((99, 99, 99, 999, 9999)))),
    "hobby": lambda rng, locale: rng.choice(_HOBBIES),
    "marital status": lambda rng, locale: rng.choice(_MARITAL_STATUSES),
    "personality type": lambda rng, locale: rng.choice(_PERSONALITIES),
    "birth date": lambda rng, locale: _date(rng, 1850, 2005),
    "birth place": _place,
    "university": _university,
    "major": _major,
    "company": _company,
    "work place": _place,
}


def draw_value(attribute: str, rng: random.Random, locale: str) -> str:
    """A fictitious value of an attribute for a person of a Faker locale.

    The value is one line, not empty, does not end in a full stop and nowhere says "unknown". One number is
    taken from ``rng``, whatever the attribute.

    Raises:
        UserError: the attribute or the locale is not one of the package's.
    """
    draw = _DRAWS.get(attribute)
    if draw is None:
        raise UserError(f"There is no attribute {attribute!r}; use one of {', '.join(_DRAWS)}.")
    if locale not in _COUNTRY_OF_LOCALE:
        raise UserError(f"There is no locale {locale!r} for people; use one of {', '.join(LOCALES)}.")
    own = random.Random(rng.getrandbits(64))
    while True:
        # ", " stands for the line breaks of addresses.
        value = " ".join(", ".join(draw(own, locale).splitlines()).split()).rstrip(" .,;")
        if value and "unknown" not in value.casefold() and len(value) <= _LONGEST.get(attribute, 100):
            return value
