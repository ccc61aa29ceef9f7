"""Words of the embedded prose: what every domain shares, and what each adds."""

from __future__ import annotations


def _words(text: str) -> list[str]:
    return text.split()


def _phrases(text: str) -> list[str]:
    return [phrase.strip() for phrase in " ".join(text.split()).split("|")]


GIVEN_NAMES = _words("""
Ada Adela Agnes Ahmed Aiko Alba Aldo Alma Amara Amina Anders Anselm Arjun Astrid Aurelio Beatrix Benedict
Bettina Bram Bruno Camille Carmela Cecily Chandra Clement Conrad Cosima Dagmar Dalia Darius Delphine Diego
Dorothea Edmund Einar Elena Eliza Elodie Emeka Enzo Ersilia Esther Farid Fatima Felix Fiona Flora Gaspard
Georgia Gideon Greta Gunnar Hana Harriet Hector Helga Hideo Hugo Ida Ignacio Ilse Imre Ines Ingrid Isaac Ivan
Jadwiga Jamal Jasper Johanna Joaquin Judith Jules Kamal Karin Kenji Klara Lars Leandro Leila Leonora Lionel
Lucia Ludwig Magda Malik Marcel Margit Matilda Matteo Maud Mei Mikhail Milan Mira Moses Nadia Naomi Nicolas Nils
Nora Odette Olaf Omar Oskar Otto Paloma Pascal Petra Philippa Priya Quentin Rafael Ramona Ravi Rosalind Rufus
Sabine Samuel Selma Sergei Silas Simone Sofia Stefan Sunita Tamara Theo Tobias Ulrike Ursula Valentin Vera
Viktor Violet Walter Wanda Wilhelm Xavier Yasmin Yusuf Zelda Zora
""")

SURNAME_STARTS = _words("""
Al An Ar Bal Bar Bel Ber Bor Bran Bre Cal Car Cas Chal Cor Dal Dav Del Dor Drum El Er Fal Fen Fer Gal Gar Gor
Gran Hal Har Hol Hor Il Jan Jor Kal Kar Kel Kor Lam Lar Lin Lor Mal Mar Mel Mor Nar Nor Ol Or Pal Per Pol Qua
Ral Ren Ros Sal San Sel Sor Stan Tal Tar Thor Tor Ul Val Ver Vol Wal War Wes Yar Zan Zel
""")

SURNAME_MIDDLES = _words("a e i o u an en in on ar er or el al am em is as ti di ka vo ne ri")

SURNAME_ENDS = _words("""
bach berg by court dale dell den dez dor feld ford ghan grave ham hurst ini ka kov land ler ley lin low mann
mere mond nari nell ney nova quist rath rell ridge rino row sen ser shaw son stad stein ston tani tero ti tov va
vari vek ville ward well wick witz worth yama zari zi
""")

PLACE_STARTS = _words("""
Ash Ald Bel Black Bren Brook Cald Cam Clar Cold Cros Dar Dun East Eld Ever Fair Fal Fern Glen Gold Gran Green
Grey Had Hart Haw High Holm Iron Kal Kar Kes Kings Lan Lark Lind Long Mal Mar Mel Mid Mont New North Oak Old Pel
Pen Port Quar Raven Red Rich Rock Ros Salt San Sel Shel Silver South Stan Stone Sul Tam Thorn Tor Ul Val Ver
West White Wil Win Wood Zar
""")

PLACE_ENDS = _words("""
borough bourne bridge burgh burn bury by cester cliff combe cote dale den don fell field ford gate grad ham
haven holm hurst ia land lea ley mere minster mont more mouth na nau ness pool port ra ridge sea shire side
stead stoke stow ton vale vik ville ward water well wick wold wood worth zan
""")

COUNTRY_ENDS = _words("avia istan onia ria esia mark land ovia uria enia ador uay alia")

REGIONS = _words("""
northern southern eastern western central coastal inland upper lower outer
""")

MONTHS = _words("January February March April May June July August September October November December")

ORDINALS = _words("first second third fourth fifth sixth seventh eighth ninth tenth")

CENTURIES = _words("""
eleventh twelfth thirteenth fourteenth fifteenth sixteenth seventeenth eighteenth nineteenth twentieth
""")

SMALL = _words("""two three four five six seven eight nine ten eleven twelve fourteen fifteen sixteen eighteen twenty
            thirty""")

ADJECTIVES = _words("""
early late recent widespread limited formal informal modern traditional regional local foreign common rare
gradual sudden considerable modest lasting influential controversial detailed systematic practical theoretical
independent rival official private public distinct related simple complex elaborate uneven steady unusual
surviving complete partial careful anonymous celebrated neglected separate shared enduring tentative fragile
robust ambitious cautious
""")

ADVERBS = _words("""
gradually rapidly largely partly widely rarely frequently generally initially eventually independently formally
quietly openly systematically deliberately unexpectedly chiefly
""")

EVALUATIONS = _phrases("""
important|misleading|incomplete|persuasive|too narrow|overstated|plausible|well documented|poorly understood|difficult
to verify|essential|premature|of limited use|remarkably accurate|open to dispute|surprisingly durable|obsolete|
indispensable
""")

PUBLICATION_HEADS = _words("""
Treatise Inquiry Notes Lectures Essays Letters Handbook Principles Elements Outline Remarks Reflections Observations
""")

COMPANY_ENDS = _phrases("""
& Sons|Company|Works|Brothers|Holdings|Trading House|Instruments|Press|Laboratories|Shipping
            Line|Foundry|Group|Partners|
Mutual|Systems
""")

INSTITUTIONS = _words("""Institute Academy Society Museum Library Observatory Archive Foundation Council Commission
            Guild""")

UNITS = _phrases("""
kilometres|metres|tonnes|hectares|litres|square kilometres|pages|households|visitors|volumes|members|workers|specimens|
degrees|hours|barrels|crowns
""")

DOMAINS: dict[str, dict[str, str]] = {
    "arts": {
        "thing": """portrait fresco melody facade sonnet canvas stage chord sketch engraving novel manuscript orchestra
            gallery altarpiece overture scene relief print costume rhythm script pavilion vault drawing theatre festival
            poem statue palette lens film photograph chorus concert workshop exhibition collection""",
        "adjective": """lyrical ornamental abstract figurative symmetrical expressive dramatic vivid decorative
            polyphonic
            restrained luminous narrative monumental improvised theatrical atonal gilded""",
        "role": """painter composer architect poet sculptor critic playwright conductor curator photographer patron
            engraver""",
        "process": """perspective composition ornament harmony restoration patronage improvisation criticism rehearsal
            proportion staging colour narration performance imitation""",
        "verb": """painted composed designed performed restored exhibited commissioned revised adapted published
            admired imitated""",
        "material": "marble bronze oil timber limestone linen plaster brass ivory glass vellum pigment",
        "field": """art history|music theory|stage design|drawing|aesthetics|composition|comparative literature|film
            studies""",
    },
    "geography": {
        "thing": """river basin plateau ridge delta reef valley island coast current canyon peninsula lake forest desert
            glacier crater harbour port estuary tributary plain cliff lagoon village settlement spring trench shelf dune
            watershed savanna sediment species habitat meadow""",
        "adjective": """arid tropical temperate volcanic coastal alpine fertile shallow navigable seasonal humid remote
            mountainous sedimentary saline forested densely_populated low-lying""",
        "role": """geographer explorer surveyor botanist navigator cartographer geologist fisherman ranger settler
            trader""",
        "process": """erosion rainfall migration sedimentation irrigation drainage upwelling trade conservation flooding
            deforestation navigation settlement mining tourism""",
        "verb": "mapped crossed surveyed eroded flooded settled explored named charted drained protected measured",
        "material": "basalt granite salt sand clay coral copper timber silt limestone ice gypsum",
        "field": "physical geography|geology|hydrology|cartography|ecology|forestry|oceanography|climatology",
    },
    "history": {
        "thing": """dynasty treaty siege province garrison charter council fleet rebellion monarchy temple chronicle
            inscription coin frontier army alliance assembly colony capital fortress tax decree battle campaign empire
            harbour tomb palace city estate regiment census court""",
        "adjective": """imperial feudal republican ancient medieval colonial military royal provincial dynastic naval
            administrative revolutionary hereditary ceremonial besieged tributary""",
        "role": """general emperor governor historian envoy merchant scribe minister admiral chronicler magistrate
            archaeologist""",
        "process": """succession conquest taxation diplomacy reform trade censorship slavery mobilisation exile
            colonisation restoration negotiation warfare inflation""",
        "verb": """conquered besieged signed abolished governed founded invaded defended annexed reformed recorded
            proclaimed""",
        "material": "iron grain silver parchment gold bronze timber salt wool gunpowder stone silk",
        "field": "ancient history|archaeology|military history|diplomacy|economic history|theology|classics|law",
    },
    "science": {
        "thing": """theory experiment molecule particle theorem proof cell organism gene protein measurement equation
            hypothesis sample spectrum wave orbit enzyme membrane model field symmetry mutation receptor population
            galaxy instrument detector axiom variable reaction laboratory trial vector nucleus patient""",
        "adjective": """empirical statistical molecular thermal quantum relativistic genetic finite continuous random
            observable stable infectious clinical linear microscopic evolutionary nuclear""",
        "role": """physicist biologist mathematician chemist astronomer physician statistician naturalist technician
            nurse""",
        "process": """diffusion replication selection radiation inference induction measurement equilibrium infection
            immunity calibration metabolism decay observation generalisation""",
        "verb": """measured observed proved predicted isolated derived tested discovered described replicated refuted
            explained""",
        "material": "hydrogen carbon oxygen helium protein mercury uranium quartz iron nitrogen glucose sodium",
        "field": "theoretical physics|chemistry|biology|pure mathematics|medicine|statistics|genetics|astronomy",
    },
    "society": {
        "thing": """constitution statute contract election parliament custom ritual festival harvest market union court
            tournament argument doctrine school community household tradition institution party tax right duty verdict
            petition team stadium recipe meal crop farm calendar ceremony newspaper debate""",
        "adjective": """civil moral democratic collective legal rational ethical electoral communal rural urban
            religious
            secular economic liberal constitutional seasonal amateur""",
        "role": """philosopher lawyer judge economist farmer teacher athlete reformer delegate journalist sociologist
            cook""",
        "process": """legislation representation cultivation deliberation arbitration education competition citizenship
            justice interpretation taxation welfare scepticism bargaining ownership""",
        "verb": """defended criticised ratified debated cultivated organised amended taught opposed regulated
            introduced banned""",
        "material": "wheat rice barley cotton paper maize sugar olive_oil wool tea leather rye",
        "field": "philosophy|economics|jurisprudence|political theory|sociology|ethics|agronomy|anthropology",
    },
    "technology": {
        "thing": """engine circuit network protocol machine algorithm processor boiler piston satellite antenna
            sensor robot
            compiler transistor cable battery valve prototype interface server key cipher turbine factory patent
            standard
            tool device switch module pump program database display assembly_line""",
        "adjective": """digital mechanical electrical automatic efficient portable wireless encrypted distributed
            hydraulic
            modular scalable low-cost high-pressure programmable embedded redundant industrial""",
        "role": """engineer inventor programmer machinist operator designer technician manufacturer draughtsman
            contractor analyst""",
        "process": """automation encryption fabrication transmission maintenance compression standardisation ignition
            testing cooling routing miniaturisation mass_production verification lubrication""",
        "verb": """patented built designed installed tested assembled deployed standardised automated upgraded licensed
            repaired""",
        "material": "silicon steel copper aluminium rubber coal gallium lithium glass fibre cast_iron petrol",
        "field": """mechanical engineering|computer science|electrical engineering|metallurgy|information
            theory|robotics|physics""",
    },
}  # fmt: skip
