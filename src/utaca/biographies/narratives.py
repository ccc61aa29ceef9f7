"""Biographies in natural prose that the tiny reader is trained on.

A wording is a sentence with slots: ``{s}`` the person as subject, ``{p}`` as possessive, ``{o}`` as object
(name, part of the name or pronoun, whatever the narrative has come to), ``{v}`` the value and, in wordings of two
facts, ``{w}`` the second value; ``{was|were}`` agrees with the subject before it.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence

from utaca.errors import UserError

_SLOT = re.compile(r"\{([^{}|]+)(?:\|([^{}]+))?\}")
_PRONOUNS = (("she", "her", "her"), ("he", "his", "him"), ("they", "their", "them"))


def _lines(text: str) -> tuple[str, ...]:
    return tuple(line.strip() for line in text.strip().splitlines())


_WORDINGS: dict[str, tuple[str, ...]] = {
    "birth date": _lines(
        """{s} {was|were} born on {v}.
        On {v}, {s} {was|were} born.
        {p} date of birth is {v}.
        {p} birthday falls on the anniversary of {v}.
        It was on {v} that {s} came into the world.
        {s} came into the world on {v}.
        {p} life began on {v}.
        {p} story begins on {v}, in the middle of a quiet week.
        The register of births lists {o} under {v}.
        The certificate gives {v} as the day of {p} birth.
        {p} mother gave birth to {o} on {v}.
        {p} parents welcomed {o} on {v}.
        {v} is the day on which {s} {was|were} born.
        {v} was the day {s} first saw the light.
        Born on {v}, {s} grew up in a lively household.
        Born on {v}, {s} {was|were} the youngest of several children.
        The family celebrated the arrival of {o} on {v}.
        The world first heard {p} voice on {v}.
        As the church books tell, {s} {was|were} born on {v}.
        {s}, born on {v}, never cared much for birthdays.
        {s}, whose birth date is {v}, always looked younger than that.
        {p} birth was recorded on {v}.
        When {s} {was|were} born on {v}, the whole street came to congratulate.
        {p} passport shows {v} as the date of birth.
        Friends still toast {o} on the anniversary of {v}, the day of {p} birth.
        {s} first opened {p} eyes on {v}."""
    ),
    "birth place": _lines(
        """{s} {was|were} born in {v}.
        {s} {was|were} a native of {v}.
        {p} birthplace is {v}.
        {p} birthplace was {v}, a place that {s} often spoke of.
        {s} came into the world in {v}.
        {s} hailed from {v}.
        {v} is where {s} {was|were} born.
        {v} was {p} birthplace.
        In {v}, {s} first saw the light of day.
        It was in {v} that {s} {was|were} born.
        Born in {v}, {s} learned early to love long walks.
        Born in {v}, {s} moved often as a child.
        {p} parents lived in {v} when {s} {was|were} born.
        {p} family had settled in {v} shortly before {p} birth.
        {p} earliest home was in {v}, the town of {p} birth.
        {p} roots lie in {v}, where {s} {was|were} born.
        The maternity ward in {v} is where {p} life started.
        {s}, a native of {v}, kept the accent for life.
        {s}, born in {v}, never lost touch with the place.
        {p} passport names {v} as the place of birth.
        {p} life started in {v}.
        {p} first cries were heard in {v}.
        The place of {p} birth was {v}.
        {s} {was|were} born and raised in {v}.
        Of all places, {s} {was|were} born in {v}.
        {p} mother was passing through {v} when {s} {was|were} born there."""
    ),
    "university": _lines(
        """{s} studied at {v}.
        {s} attended {v}.
        {s} graduated from {v}.
        {s} earned a degree from {v}.
        {s} received {p} education at {v}.
        {s} enrolled at {v} after leaving school.
        {s} went on to study at {v}.
        {s} spent {p} student years at {v}.
        {s} took {p} degree at {v}.
        {s} {was|were} admitted to {v}.
        {s} {was|were} a student at {v}.
        {p} alma mater is {v}.
        {p} university was {v}.
        {p} studies led {o} to {v}.
        {p} student years passed at {v}.
        {p} diploma bears the seal of {v}.
        {v} is {p} alma mater.
        {v} was the university that {s} chose.
        {v} awarded {o} a degree.
        {v} offered {o} a place, and {s} accepted.
        At {v}, {s} found teachers who took {p} questions seriously.
        It was at {v} that {s} completed {p} studies.
        After school, {s} moved away to attend {v}.
        Having been accepted by {v}, {s} packed two suitcases and left.
        A scholarship brought {o} to {v}.
        As a graduate of {v}, {s} kept close ties with former classmates.
        {s}, an alumnus of {v}, returned for every reunion."""
    ),
    "major": _lines(
        """{s} majored in {v}.
        {s} studied {v}.
        {s} chose {v} as {p} major.
        {s} took a degree in {v}.
        {s} earned a degree in {v}.
        {s} specialised in {v}.
        {s} devoted {p} studies to {v}.
        {s} decided to study {v}.
        {s} {was|were} trained in {v}.
        {s} wrote a thesis in {v}.
        {p} major was {v}.
        {p} field of study was {v}.
        {p} degree is in {v}.
        {p} subject was {v}.
        {p} academic interest lay in {v}.
        {p} favourite subject, {v}, became {p} major.
        {v} was {p} major.
        {v} was the subject that {s} chose to study.
        {v} had fascinated {o} since school, and {s} majored in it.
        With a degree in {v}, {s} looked to the future with confidence.
        As a student, {s} concentrated on {v}.
        At university, {s} read {v}.
        At university, {p} choice of {v} as a major surprised nobody.
        It was {v} that {s} studied, against some advice.
        Nobody was astonished when {s} settled on {v} as {p} major.
        A gifted teacher led {o} to major in {v}.
        The diploma on {p} wall is in {v}."""
    ),
    "company": _lines(
        """{s} worked for {v}.
        {s} {was|were} employed by {v}.
        {s} found a position with {v}.
        {s} joined {v}.
        {s} joined {v} and stayed there for years.
        {s} made a career at {v}.
        {s} {was|were} hired by {v}.
        {s} accepted an offer from {v}.
        {s} built {p} career at {v}.
        {s} {was|were} on the staff of {v}.
        {s} signed a contract with {v}.
        {s} {is|are} employed at {v}.
        {p} employer was {v}.
        {p} employer is {v}.
        {p} company is {v}.
        {p} professional life unfolded at {v}.
        {p} business card carries the name of {v}.
        {p} salary came from {v}.
        {v} hired {o} soon afterwards.
        {v} became {p} employer.
        {v} is the company that {s} worked for.
        {v} offered {o} a job, which {s} took without hesitation.
        At {v}, {s} rose steadily.
        At {v}, colleagues valued {p} patience.
        It was {v} that gave {o} a first chance.
        After some hesitation, {s} took a job with {v}.
        As an employee of {v}, {s} learned to plan ahead."""
    ),
    "work place": _lines(
        """{s} worked in {v}.
        {s} {was|were} based in {v} for work.
        {s} moved to {v} for work.
        {s} commuted daily to {v}.
        {s} had an office in {v}.
        {s} pursued {p} profession in {v}.
        {s} {was|were} stationed in {v}.
        {s} went to work in {v}.
        {s} spent {p} working days in {v}.
        {s} {works|work} in {v}.
        {p} office was in {v}.
        {p} work place was {v}.
        {p} place of work is {v}.
        {p} job was located in {v}.
        {p} desk stood in {v}.
        {p} working life took place in {v}.
        {p} profession brought {o} to {v}.
        {v} is where {s} worked.
        {v} became the place of {p} daily work.
        {v} was the place where {s} earned {p} living.
        In {v}, {s} went about {p} daily work.
        It was in {v} that {s} worked.
        On weekdays, {s} could be found at work in {v}.
        Every morning, {s} took the train to an office in {v}.
        Work took {o} to {v}.
        The job required {o} to move to {v}.
        The office where {s} worked was located in {v}."""
    ),
    "marriage date": _lines(
        """{s} married on {v}.
        {s} {was|were} married on {v}.
        On {v}, {s} got married.
        {p} wedding took place on {v}.
        {p} wedding day was {v}.
        {p} marriage was celebrated on {v}.
        The wedding of {o} took place on {v}.
        {v} was the day of {p} wedding.
        {s} exchanged vows on {v}.
        {s} tied the knot on {v}.
        It was on {v} that {s} married.
        The registry records {p} marriage on {v}.
        {p} marriage dates from {v}.
        {s}, married on {v}, kept the invitation in a drawer.
        {p} wedding ring is engraved with {v}.
        Since {v}, {s} {has|have} been married."""
    ),
    "job title": _lines(
        """{s} worked under the job title {v}.
        {p} job title was {v}.
        {p} job title is {v}.
        {p} profession is given as {v}.
        {p} business card reads {v}.
        {p} occupation was listed as {v}.
        {s} earned a living with the job title {v}.
        {s} held the post of {v}.
        {s} held the title of {v}.
        {v} is what {p} contract says under job title.
        {v} was {p} job title.
        {s} {was|were} appointed to the position of {v}.
        The sign on {p} door says {v}.
        The position that {s} held was {v}.
        By profession, {s} {was|were} listed as {v}."""
    ),
    "current city": _lines(
        """{s} currently {lives|live} in {v}.
        {s} now {lives|live} in {v}.
        {p} current city is {v}.
        {p} home is now in {v}.
        {v} is where {s} {lives|live} today.
        {v} is the city that {s} {calls|call} home at present.
        {s} {resides|reside} in {v}.
        {s} {has|have} settled in {v}.
        Today, {s} {lives|live} in {v}.
        These days, {s} can be met in {v}.
        {p} present residence is in {v}.
        {s} recently moved to {v} and {lives|live} there now.
        After several moves, {s} {has|have} made {v} {p} home.
        At present, {p} city is {v}.
        For now, {s} {is|are} at home in {v}."""
    ),
    "email address": _lines(
        """{p} email address is {v}.
        {s} can be reached by email at {v}.
        {s} {reads|read} the mail sent to {v}.
        {s} {uses|use} the email address {v}.
        Messages to {o} go to {v}.
        Letters to {o} are answered faster when sent to {v}.
        {v} is {p} email address.
        {v} is the address to which {s} {wants|want} mail sent.
        Anyone who writes to {v} reaches {o}.
        To contact {o}, one writes to {v}.
        The mailbox {v} belongs to {o}.
        On {p} card stands the email address {v}.
        {s} {answers|answer} every message that arrives at {v}.
        {p} electronic mail is delivered to {v}."""
    ),
    "phone number": _lines(
        """{p} phone number is {v}.
        {s} can be called at {v}.
        {s} {answers|answer} the phone at {v}.
        {s} can be reached by telephone under {v}.
        The number {v} rings in {p} kitchen.
        {v} is {p} phone number.
        {v} is the number under which {s} can be reached.
        Whoever dials {v} will hear {p} voice.
        To ring {o}, dial {v}.
        The directory lists {o} under {v}.
        {p} telephone has the number {v}.
        {p} line has had the number {v} for years.
        {s} left the number {v} with the neighbours.
        For urgent matters, {s} {gives|give} out the number {v}."""
    ),
    "favorite color": _lines(
        """{p} favorite color is {v}.
        {p} favourite colour has always been {v}.
        {v} is {p} favorite color.
        {v} is the color that {s} {likes|like} best.
        Of all colors, {s} {prefers|prefer} {v}.
        {s} {loves|love} the color {v}.
        {s} painted {p} door in {v}, {p} favorite color.
        {p} rooms are full of {v}, the color {s} {loves|love} most.
        Asked for a favorite color, {s} always {says|say} {v}.
        No color pleases {o} more than {v}.
        {s} {is|are} fond of the color {v}.
        Among colors, {p} choice is {v}.
        {p} scarves are all in {v}, {p} favorite color."""
    ),
    "user agent": _lines(
        """{p} user agent is {v}.
        {p} browser identifies itself as {v}.
        {p} browser sends the user agent {v}.
        {v} is {p} user agent.
        {v} is the user agent that {s} {browses|browse} with.
        {s} {browses|browse} the web with the user agent {v}.
        {s} {visits|visit} sites with {v} as user agent.
        Server logs show {o} with the user agent {v}.
        Websites see {o} as {v}.
        The logs list {p} visits under {v}.
        On the web, {p} machine presents itself as {v}.
        The user agent string that {s} {leaves|leave} behind is {v}.
        When {s} {goes|go} online, the user agent reads {v}."""
    ),
    "credit card provider": _lines(
        """{p} credit card provider is {v}.
        {p} credit card comes from {v}.
        {p} card was issued by {v}.
        {v} is {p} credit card provider.
        {v} issued the card in {p} wallet.
        {s} {pays|pay} with a credit card from {v}.
        {s} {holds|hold} a credit card from {v}.
        {s} {carries|carry} a card from {v}.
        In shops, {s} {pays|pay} with a {v} card.
        For purchases, {s} {uses|use} a {v} credit card.
        The credit card that {s} {uses|use} is from {v}.
        As credit card provider, {s} chose {v}.
        The logo on {p} credit card is that of {v}."""
    ),
    "currency used": _lines(
        """{p} currency is the {v}.
        The currency used by {o} is the {v}.
        {s} {pays|pay} in {v}.
        {s} {uses|use} the {v} as currency.
        {s} {keeps|keep} {p} savings in {v}.
        {s} {does|do} {p} accounts in {v}.
        {p} bills are settled in {v}.
        {p} wallet holds {v}.
        {v} is the currency that {s} {uses|use}.
        {v} is the money in {p} purse.
        For daily purchases, {s} {uses|use} the {v}.
        Prices mean most to {o} when given in {v}.
        {p} contracts are all in {v}, the currency that {s} {uses|use}."""
    ),
    "catch phrase": _lines(
        """{p} catch phrase is {v}.
        {p} motto is {v}.
        {s} {is|are} known for the catch phrase {v}.
        {s} {likes|like} to say: {v}.
        {s} {ends|end} every speech with {v}.
        {v} is {p} catch phrase.
        {v} is the phrase that everyone associates with {o}.
        Colleagues tease {o} with the phrase {v}.
        The phrase {v} is heard from {o} at every meeting.
        When asked for advice, {s} {answers|answer} with {v}.
        The mug on {p} desk reads {v}, {p} catch phrase.
        Over the years, {v} became {p} catch phrase.
        {p} favourite saying is {v}."""
    ),
    "street address": _lines(
        """{p} street address is {v}.
        {p} house stands at {v}.
        {s} {lives|live} at {v}.
        {s} {receives|receive} letters at {v}.
        {s} can be visited at {v}.
        {s} rented a flat at {v}.
        {v} is {p} street address.
        {v} is the address on {p} letters.
        Visitors find {o} at {v}.
        Parcels for {o} go to {v}.
        The house at {v} belongs to {o}.
        The address book gives {v} for {o}.
        The door at {v} is {p} own."""
    ),
    "vehicle license plate": _lines(
        """{p} vehicle license plate is {v}.
        {p} car carries the license plate {v}.
        {p} license plate reads {v}.
        {s} {drives|drive} a car with the plate {v}.
        {s} registered a vehicle under {v}.
        {s} {parks|park} a car with the plate {v} outside.
        {v} is {p} license plate.
        {v} is the plate on {p} car.
        The car with the plate {v} belongs to {o}.
        The vehicle registered as {v} is {p} own.
        Neighbours know {p} car by its plate, {v}.
        On the road, {s} can be told by the license plate {v}.
        The garage lists {p} van under {v}."""
    ),
    "favorite file extension": _lines(
        """{p} favorite file extension is {v}.
        {p} files mostly end in {v}.
        {s} {saves|save} everything as {v}.
        {s} {prefers|prefer} files with the extension {v}.
        {s} {likes|like} the file extension {v} best.
        {v} is {p} favorite file extension.
        {v} is the file extension that {s} {likes|like} most.
        Of all file extensions, {s} {prefers|prefer} {v}.
        Asked for a favorite file extension, {s} {names|name} {v}.
        Colleagues receive files in {v} from {o}, as that is {p} favorite.
        {p} folders are full of {v} files, {p} favorite kind.
        No file extension pleases {o} more than {v}.
        Among file extensions, {p} choice is {v}."""
    ),
    "domain name": _lines(
        """{p} domain name is {v}.
        {p} website is found at {v}.
        {p} website runs under {v}.
        {s} {owns|own} the domain {v}.
        {s} registered the domain name {v}.
        {s} {publishes|publish} essays at {v}.
        {v} is {p} domain name.
        {v} is the domain that {s} registered.
        The domain {v} belongs to {o}.
        The site at {v} is run by {o}.
        Readers find {o} online at {v}.
        On the internet, {s} {has|have} the domain {v}.
        For {p} home page, {s} chose the domain name {v}."""
    ),
    "cryptocurrency": _lines(
        """{p} cryptocurrency is {v}.
        {p} digital savings are in {v}.
        {s} {owns|own} some {v}, a cryptocurrency.
        {s} {trusts|trust} the cryptocurrency {v}.
        {s} {trades|trade} in {v}.
        {s} {has|have} invested in {v}.
        {v} is {p} cryptocurrency.
        {v} is the cryptocurrency that {s} {holds|hold}.
        Among cryptocurrencies, {s} chose {v}.
        Of all digital coins, {s} {prefers|prefer} {v}.
        {p} digital wallet contains {v}.
        A friend persuaded {o} to buy {v}.
        The only cryptocurrency that {s} {holds|hold} is {v}."""
    ),
    "timezone": _lines(
        """{p} timezone is {v}.
        {p} clock is set to {v}.
        {p} calendar runs on {v} time.
        {s} {lives|live} in the timezone {v}.
        {s} {keeps|keep} {p} watch on {v}.
        {s} {schedules|schedule} calls in {v} time.
        {v} is {p} timezone.
        {v} is the timezone that {s} {lives|live} by.
        Calls to {o} should respect the timezone {v}.
        Meetings with {o} are held on {v} time.
        The timezone on {p} computer is {v}.
        For appointments, {s} {uses|use} the timezone {v}.
        As for the timezone, {s} {is|are} in {v}."""
    ),
    "isbn code": _lines(
        """{p} isbn code is {v}.
        {p} book has the ISBN {v}.
        {p} memoir appeared under the ISBN {v}.
        {s} wrote a book with the ISBN {v}.
        {s} published a volume under {v}.
        {v} is {p} isbn code.
        {v} is the ISBN of {p} book.
        Libraries list {p} book under {v}.
        The isbn code {v} leads to {p} only book.
        The book that {s} wrote carries the code {v}.
        Booksellers find {p} work under {v}.
        The back cover of {p} book shows {v}.
        To order {p} book, one quotes the ISBN {v}."""
    ),
    "lucky number": _lines(
        """{p} lucky number is {v}.
        {p} lucky number has always been {v}.
        {s} {believes|believe} that {v} brings luck.
        {s} {considers|consider} {v} a lucky number.
        {s} always {bets|bet} on {v}.
        {v} is {p} lucky number.
        {v} is the number that {s} {thinks|think} lucky.
        The number {v} has brought {o} luck.
        The jersey that {s} wore had {p} lucky number, {v}.
        In every lottery, {s} {picks|pick} the lucky number {v}.
        Asked for a lucky number, {s} {says|say} {v}.
        Of all numbers, {v} is the one that {s} {trusts|trust}.
        Luck, {s} {says|say}, comes with the number {v}."""
    ),
    "hobby": _lines(
        """{p} hobby is {v}.
        {p} favourite pastime is {v}.
        {p} weekends belong to {v}.
        {s} {spends|spend} {p} free time on {v}.
        {s} {has|have} one hobby: {v}.
        {s} took up {v} as a hobby.
        {s} {enjoys|enjoy} {v} more than anything.
        {v} is {p} hobby.
        {v} fills {p} spare hours.
        As a hobby, {s} chose {v}.
        In {p} spare time, {s} {turns|turn} to {v}.
        Nothing relaxes {o} like {v}, {p} hobby.
        Friends know {o} for one hobby, {v}."""
    ),
    "marital status": _lines(
        """{p} marital status is {v}.
        {p} marital status is given as {v}.
        {p} papers list the marital status {v}.
        {v} is {p} marital status.
        {v} is what {p} papers say under marital status.
        {s} {is|are} registered as {v}.
        {s} {gives|give} {p} marital status as {v}.
        {s} ticked {v} under marital status.
        On forms, {s} {enters|enter} {v} as marital status.
        The census lists {o} as {v}.
        The registry office records {o} as {v}.
        As to marital status, {s} {is|are} {v}.
        The box for marital status says {v} in {p} file."""
    ),
    "personality type": _lines(
        """{p} personality type is {v}.
        {p} character is that of the type {v}.
        {p} test result was {v}, a personality type that surprised nobody.
        {v} is {p} personality type.
        {v} is the personality type that fits {o} best.
        {s} {is|are} described as {v} by type of personality.
        {s} {considers|consider} the personality type {v} to fit well.
        {s} {belongs|belong} to the personality type {v}.
        Psychologists would call {o} {v}.
        A questionnaire put {o} down as {v}.
        By personality, {s} {is|are} of the type {v}.
        As a personality type, {s} {is|are} {v}.
        Friends describe {p} personality as {v}."""
    ),
}

_PAIRS: dict[tuple[str, str], tuple[str, ...]] = {
    ("birth date", "birth place"): _lines(
        """{s} {was|were} born on {v} in {w}.
        {s} {was|were} born in {w} on {v}.
        On {v}, {s} {was|were} born in {w}.
        Born on {v} in {w}, {s} had a calm childhood.
        Born in {w} on {v}, {s} {was|were} the first child of the house.
        {s} came into the world on {v} in {w}.
        {s}, born in {w} on {v}, grew up among books.
        {p} life began in {w} on {v}.
        {p} life began on {v}, and {p} birthplace was {w}.
        {p} parents were living in {w} when {s} {was|were} born on {v}.
        It was in {w}, on {v}, that {s} {was|were} born.
        In {w}, on {v}, {s} first saw the light of day.
        {s} ({v}, {w}) {was|were} the elder of two children.
        The register of {w} notes {p} birth on {v}.
        {s}, a native of {w}, {was|were} born on {v}."""
    ),
    ("university", "major"): _lines(
        """{s} studied {w} at {v}.
        {s} majored in {w} at {v}.
        {s} earned a degree in {w} from {v}.
        {s} graduated from {v} with a degree in {w}.
        {s} attended {v}, where {s} majored in {w}.
        {s} enrolled at {v} to study {w}.
        {s} took a degree in {w} at {v}.
        {p} degree in {w} is from {v}.
        {p} student years at {v} were devoted to {w}.
        At {v}, {s} chose {w} as {p} major.
        At {v}, {s} studied {w}.
        After school, {s} read {w} at {v}.
        {v} awarded {o} a degree in {w}.
        It was {w} that {s} studied at {v}.
        With a degree in {w} from {v}, {s} entered the world of work."""
    ),
    ("company", "work place"): _lines(
        """{s} worked for {v} in {w}.
        {s} {was|were} employed by {v} in {w}.
        {s} joined {v} and worked in {w}.
        {s} joined the {w} office of {v}.
        {s} moved to {w} to work for {v}.
        {s} found a position with {v}, based in {w}.
        {s} accepted an offer from {v} and went to work in {w}.
        {p} career at {v} was spent in {w}.
        {p} employer, {v}, gave {o} an office in {w}.
        At {v}, {s} worked in {w}.
        In {w}, {s} worked for {v}.
        {v} hired {o} for its branch in {w}.
        {v} sent {o} to {w}, where {s} worked from then on.
        It was for {v} that {s} worked in {w}.
        Work for {v} took {o} to {w}."""
    ),
    ("birth date", "university"): _lines(
        """Born on {v}, {s} later attended {w}.
        {s}, born on {v}, graduated from {w}.
        {s}, an alumnus of {w}, {was|were} born on {v}.
        {s} {was|were} born on {v} and later studied at {w}."""
    ),
    ("birth place", "work place"): _lines(
        """Born in {v}, {s} later worked in {w}.
        {s} left {v}, the place of {p} birth, to work in {w}.
        From {v}, where {s} {was|were} born, {p} path led to a job in {w}.
        {s} {was|were} born in {v} but worked in {w}."""
    ),
    ("major", "company"): _lines(
        """With a degree in {v}, {s} found work at {w}.
        {s} majored in {v} and then joined {w}.
        {s} studied {v} before {w} offered {o} a job.
        A degree in {v} opened the doors of {w} to {o}."""
    ),
}

# Wordings of facts may be led in by these when they begin with the person, or closed by those below.
_OPENINGS = _lines(
    """By all accounts,
    As friends recall,
    According to the records,
    As far as anyone remembers,
    As it happens,
    For the record,
    As the family tells it,
    In the same period,
    Not surprisingly,
    As the documents show,
    Some time earlier,
    As neighbours remember,
    It is well documented that
    It is said that
    The archives confirm that
    Old letters show that
    People who met {o} say that"""
)
_CLOSINGS = _lines(
    """, as the old letters show
    , which few people know
    , as {p} friends like to tell
    , according to the family
    , a detail that relatives like to repeat
    , much to the delight of {p} relatives
    , if the records can be trusted
    , and that never changed
    , though {s} rarely spoke about it
    , as everyone in the neighbourhood knows"""
)

_CONNECTING = _lines(
    """Those years shaped {o} more than anything that followed.
    {s} {was|were} known for a dry sense of humour.
    {s} kept a diary for most of {p} life.
    Neighbours describe {o} as a patient listener.
    {p} family was large and rather noisy.
    The winters of that time were long and cold.
    Little is said about the years in between.
    {s} {was|were} fond of long walks and strong tea.
    Not everything went according to plan.
    {p} friends remember the laughter above all.
    A turning point came a few years later.
    It was a time of great change for everyone.
    {s} never sought the attention of others.
    Music played in the house from morning to night.
    {s} learned early to rely on {p} own judgement.
    Much of this is known from letters.
    {p} grandparents told stories that {s} never forgot.
    The summers were spent by the sea.
    {s} liked to repair old clocks and radios.
    In quiet moments, {s} wrote short poems.
    Some chapters of this life remain untold.
    {s} kept in touch with old friends by letter.
    A good book was never far away.
    {p} curiosity often led {o} to unexpected places.
    Money was short, but there was always enough to eat.
    {s} often said that patience is half of every success.
    The household included two cats and a very old dog.
    {p} teachers noticed a talent for explaining difficult things.
    There were setbacks, as in every life.
    {s} accepted advice gladly, but seldom followed it.
    What mattered most to {o} was being useful.
    Time passed quickly in those days.
    {p} handwriting was famously hard to read.
    On Sundays, the whole family met for lunch.
    {s} {was|were} always the last to leave a good conversation.
    A small garden gave {o} great pleasure.
    Looking back, {s} spoke of luck rather than merit.
    This is how the story is usually told."""
)


class _Voice:
    """Who a narrative speaks of, and how: names before pronouns, one pronoun throughout."""

    def __init__(self, person: str, rng: random.Random) -> None:
        self.person = person
        self.rng = rng
        self.pronoun = rng.choice(_PRONOUNS)
        self.introduced = False

    def _name(self) -> str:
        """The name in the form that it is mentioned by, empty for the pronoun."""
        if not self.introduced:
            self.introduced = True
            return self.person
        draw = self.rng.random()
        if draw < 0.35:
            return self.person
        words = self.person.split()
        if draw < 0.45:
            return words[0]
        if draw < 0.55 and len(words) > 1:
            return words[-1]
        return ""

    def sentence(self, wording: str, values: Sequence[str] = ()) -> str:
        """The wording with its slots filled; later mentions within the sentence are pronouns."""
        nominative, possessive, objective = self.pronoun
        mentioned = False
        plural = False

        def fill(slot: re.Match[str]) -> str:
            nonlocal mentioned, plural
            key, plural_form = slot.groups()
            if plural_form is not None:
                return plural_form if plural else key
            if key in ("v", "w"):
                return values["vw".index(key)]
            name = "" if mentioned else self._name()
            mentioned = True
            plural = not name and nominative == "they"
            if name:
                return f"{name}'s" if key == "p" else name
            word = {"s": nominative, "p": possessive, "o": objective}[key]
            return word.capitalize() if slot.start() == 0 else word

        return _SLOT.sub(fill, wording)


def _decorated(wording: str, rng: random.Random) -> str:
    """The wording, now and then with a clause before or after."""
    draw = rng.random()
    if draw < 0.10 and wording.startswith(("{s}", "{p}")):
        return f"{rng.choice(_OPENINGS)} {wording}"
    if 0.10 <= draw < 0.18 and wording.count(",") == 0:
        return wording[:-1] + rng.choice(_CLOSINGS) + "."
    return wording


def _units(attributes: Sequence[str], rng: random.Random) -> list[tuple[str, ...]]:
    """The attributes in one of many orders, some of them in pairs that share a sentence."""
    pairs = [pair for pair in _PAIRS if set(pair) <= set(attributes)]
    rng.shuffle(pairs)
    paired: dict[str, tuple[str, str]] = {}
    for pair in pairs:
        if not paired.keys() & set(pair) and rng.random() < 0.4:
            paired |= dict.fromkeys(pair, pair)
    units = list(dict.fromkeys(paired.get(attribute, (attribute,)) for attribute in attributes))
    if rng.random() < 0.5:
        rng.shuffle(units)
    return units


def narrative(person: str, facts: Sequence[tuple[str, str]], rng: random.Random) -> list[str]:
    """Sentences of natural prose that state every (attribute, value) pair of ``facts``.

    Every value stands verbatim in one sentence, the person's full name in the first sentence about the person.

    Raises:
        UserError: an attribute has no wordings, or is given twice.
    """
    value_of = dict(facts)
    if len(value_of) != len(facts):
        raise UserError(f"The facts about {person} name an attribute twice; give each attribute once.")
    missing = [attribute for attribute in value_of if attribute not in _WORDINGS]
    if missing:
        raise UserError(f"There are no wordings for the attribute {missing[0]!r}; use one of {', '.join(_WORDINGS)}.")
    voice = _Voice(person, rng)
    connecting = rng.sample(_CONNECTING, len(_CONNECTING))
    share = rng.choice((0.0, 0.2, 0.5, 0.8))
    sentences = []
    for unit in _units(list(value_of), rng):
        if rng.random() < share:
            sentences.append(voice.sentence(connecting.pop()))
        wordings = _PAIRS[unit] if len(unit) == 2 else _WORDINGS[unit[0]]
        sentences.append(voice.sentence(_decorated(rng.choice(wordings), rng), [value_of[name] for name in unit]))
    if rng.random() < share:
        sentences.append(voice.sentence(connecting.pop()))
    return sentences
