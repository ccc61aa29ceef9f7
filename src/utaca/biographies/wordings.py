"""The wordings of biographies in natural prose, as :mod:`utaca.biographies.narratives` fills them.

None of them is a wording of the reference writer, which writes the biographies that the reader is tested on.
"""

from __future__ import annotations


def _lines(text: str) -> tuple[str, ...]:
    return tuple(line.strip() for line in text.strip().splitlines())


WORDINGS: dict[str, tuple[str, ...]] = {
    "birth date": _lines(
        """On {v}, {s} {was|were} born.
        {p} date of birth is {v}.
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
        {s} first opened {p} eyes on {v}.
        {s} arrived on {v}, two weeks earlier than expected.
        The day of {p} birth was {v}.
        {p} birth date is {v}.
        {p} birth fell on {v}.
        {p} birth is dated {v}.
        {p} birth took place on {v}.
        {p} birth on {v} was announced in the local newspaper.
        News of {p} birth spread on {v}.
        A midwife delivered {o} on {v}.
        A country doctor delivered {o} in the early hours of {v}.
        {s} {was|were} delivered on {v} after a long night.
        {s} {was|were} brought into the world on {v}.
        {s} {was|were} welcomed into the family on {v}.
        {s} entered this world on {v}.
        {s} drew {p} first breath on {v}.
        {s} saw the light of day for the first time on {v}.
        A healthy child, {s} {was|were} born on {v}.
        An only child, {s} {was|were} born on {v} to parents of modest means.
        The eldest of four, {s} {was|were} born on {v}.
        Few could have guessed what would become of {o} when {s} {was|were} born on {v}.
        It all began on {v}, the day that {s} {was|were} born.
        Everything started with {p} birth on {v}.
        The story opens on {v} with {p} birth.
        If the papers are right, {s} {was|were} born on {v}.
        Encyclopedias give {p} date of birth as {v}.
        Reference works give {v} as {p} date of birth.
        Official records state that {s} {was|were} born on {v}.
        The parish register states that {s} {was|were} born on {v}.
        According to {p} birth certificate, {s} {was|were} born on {v}.
        In the civil registry, {s} {is|are} entered as born on {v}.
        {p} identity card reads {v} next to date of birth.
        {p} curriculum vitae opens with the date of birth, {v}.
        The date of birth, as {p} papers have it: {v}.
        {p} gravestone gives {v} as the date of birth.
        The obituary notes that {s} {was|were} born on {v}.
        {v} brought {o} into the world.
        {v} marks {p} birth.
        {v} is the date on {p} birth certificate.
        {v} was the day on which {p} mother brought {o} into the world.
        {v}: that is {p} date of birth.
        On {v}, {p} parents held {o} in their arms for the first time.
        On {v}, {p} life began in a small bedroom under the roof.
        On {v}, a stormy day, {s} came into the world.
        Having been born on {v}, {s} {was|were} always the oldest in class.
        Because {s} {was|were} born on {v}, school started late for {o}.
        Anyone born on {v}, as {s} {was|were}, has seen the world change.
        {s}, who {was|were} born on {v}, grew up in the care of an aunt.
        {s}, who came into the world on {v}, {was|were} named after a grandparent.
        {s} (born {v}) grew up with three sisters.
        {s} (date of birth: {v}) never liked parties.
        {s} always gave {v} as {p} date of birth.
        When asked for {p} date of birth, {s} would answer {v}.
        The family Bible notes {p} birth under {v}.
        The files of the hospital date {p} birth to the morning of {v}.
        A silver spoon engraved with {v} recalls {p} birth.
        {p} date of birth, {v}, is written on the back of an old photograph.
        {p} birthday, {v}, was an ordinary working day.
        Church bells were ringing on {v} when {s} {was|were} born.
        There was thunder in the air on {v}, the day that {s} {was|were} born.
        {p} days on this earth began on {v}."""
    ),
    "birth place": _lines(
        """{s} {was|were} a native of {v}.
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
        {s} {was|were} born and raised in {v}.
        Of all places, {s} {was|were} born in {v}.
        {p} mother was passing through {v} when {s} {was|were} born there.
        {s} {was|were} born at home in {v}, in a house by the river.
        {s} {was|were} born at the hospital of {v}.
        {s} {was|were} born into a family of teachers in {v}.
        {s} {was|were} born to a baker and a nurse in {v}.
        {s} {was|were} delivered by a midwife in {v}.
        {s} {was|were} baptised in {v}, where {s} had been born a week earlier.
        {s} {is|are} from {v} by birth.
        {s} {comes|come} originally from {v}.
        {s} {was|were} originally from {v}.
        {s} entered the world in {v}.
        {s} drew {p} first breath in {v}.
        {s} first opened {p} eyes in {v}.
        {s} took {p} first steps in {v}, where {s} had been born.
        {s} spent the first weeks of life in {v}, {p} place of birth.
        {s} always gave {v} as {p} place of birth.
        {s} never tired of praising {v}, {p} birthplace.
        {s}, a child of {v}, went barefoot until autumn.
        {s}, who {was|were} born in {v}, never forgot the smell of the place.
        {s}, whose cradle stood in {v}, loved old furniture.
        {s}, originally from {v}, missed the local bread.
        {s} (born in {v}) learned to swim before learning to read.
        {p} birth took place in {v}.
        {p} birth in {v} was the talk of the street.
        {p} birth is recorded in {v}.
        {p} birth was registered in {v}.
        {p} cradle stood in {v}.
        {p} home town, where {s} {was|were} born, is {v}.
        {p} native town is {v}.
        {p} native place was {v}.
        {p} origins are in {v}.
        {p} story begins in {v}.
        {p} story starts in {v}, in a room above a shop.
        {p} place of birth, {v}, appears in all of the documents.
        {p} birth certificate was issued in {v}.
        {p} mother gave birth to {o} in {v}.
        {p} parents were staying with relatives in {v} at the time of {p} birth.
        {p} identity card states {v} under place of birth.
        {v} is given as {p} place of birth.
        {v} is the town that {s} came from by birth.
        {v} was home to {p} parents, and there {s} {was|were} born.
        {v} may be proud of {o}, for it is where {s} {was|were} born.
        {v} counts {o} among its natives.
        {v} saw {o} come into the world.
        {v}, where {s} {was|were} born, still has a street of that name.
        Born and bred in {v}, {s} knew every corner of the place.
        Born at home in {v}, {s} {was|were} the third of six children.
        A native of {v}, {s} kept a map of the place above the sofa.
        A son or daughter of {v} never forgets it, and {s}, born there, did not either.
        A hospital in {v} is where {s} first saw the light.
        A plaque in {v} marks the house where {s} {was|were} born.
        The house where {s} {was|were} born still stands in {v}.
        The hospital where {s} {was|were} born is in {v}.
        The civil register of {v} has a record of {p} birth.
        The church book of {v} records {p} baptism and birth.
        The people of {v} like to mention that {s} {was|were} born among them.
        Reference works give {p} birthplace as {v}.
        Biographers agree that {s} {was|were} born in {v}.
        If one asks where {s} {was|were} born, the answer is {v}.
        Everything began in {v}, where {s} {was|were} born.
        Life began for {o} in {v}.
        Although {s} {was|were} born in {v}, {p} family soon moved away.
        Since {p} father worked there at the time, {s} {was|were} born in {v}."""
    ),
    "university": _lines(
        """{s} studied at {v}.
        {s} attended {v}.
        {s} earned a degree from {v}.
        {s} received {p} education at {v}.
        {s} enrolled at {v} after leaving school.
        {s} went on to study at {v}.
        {s} spent {p} student years at {v}.
        {s} took {p} degree at {v}.
        {s} {was|were} admitted to {v}.
        {s} {was|were} a student at {v}.
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
        {s}, an alumnus of {v}, returned for every reunion.
        {s} matriculated at {v}.
        {s} {was|were} educated at {v}.
        {s} {was|were} enrolled at {v}.
        {s} {was|were} accepted by {v} at the first attempt.
        {s} {was|were} an undergraduate at {v}.
        {s} {was|were} a graduate of {v}.
        {s} {is|are} a graduate of {v}.
        {s} {holds|hold} a degree from {v}.
        {s} {is|are} listed among the alumni of {v}.
        {s} {belongs|belong} to the alumni association of {v}.
        {s} completed {p} studies at {v}.
        {s} completed a course of study at {v}.
        {s} finished {p} degree at {v}.
        {s} gained {p} diploma at {v}.
        {s} obtained a diploma from {v}.
        {s} passed {p} final examinations at {v}.
        {s} sat {p} examinations at {v}.
        {s} won a place at {v}.
        {s} won a scholarship to {v}.
        {s} registered as a student at {v}.
        {s} entered {v} after a year of travelling.
        {s} began {p} studies at {v} with little money and great hopes.
        {s} left {v} with a degree and many friends.
        {s} chose {v} for {p} studies because of the library.
        {s} lived in a student hall while attending {v}.
        {s} heard lectures at {v} from morning to evening.
        {s} received {p} academic training at {v}.
        {s} went to {v} to study.
        {s} went to {v}, as {p} mother had done before.
        {s} wrote {p} thesis at {v}.
        {s} defended a thesis at {v}.
        {s} rowed for {v} as a student.
        {s} sang in the choir of {v} during {p} student days.
        {s}, a former student of {v}, still wears the scarf.
        {s}, who studied at {v}, paid the fees by giving lessons.
        {s}, educated at {v}, spoke three languages.
        {p} academic education took place at {v}.
        {p} academic path began at {v}.
        {p} alma mater was {v}.
        {p} degree was awarded by {v}.
        {p} degree certificate was issued by {v}.
        {p} higher education began and ended at {v}.
        {p} name is found among the graduates of {v}.
        {p} parents were proud when {v} admitted {o}.
        {p} student card was issued by {v}.
        {p} university years were spent at {v}.
        {p} years at {v} ended with a degree.
        {p} curriculum vitae names {v} under higher education.
        {v} accepted {o} as a student.
        {v} admitted {o} after an interview.
        {v} counts {o} among its graduates.
        {v} conferred a degree on {o}.
        {v} granted {o} a scholarship.
        {v} gave {o} an academic education.
        {v} is the university from which {s} graduated.
        {v} is where {s} went to university.
        {v} is where {s} obtained {p} degree.
        {v}, where {s} studied, lay a long way from home.
        Among the students of {v} in those years was {o}, always in the front row.
        As a student of {v}, {s} lived on soup and coffee.
        As an undergraduate at {v}, {s} edited the student newspaper.
        At {v}, {s} sat the final examinations with success.
        At {v}, {s} {was|were} a diligent student.
        The alumni directory of {v} contains {p} name.
        The lecture halls of {v} became {p} second home.
        The rector of {v} handed {o} the diploma.
        The university that {s} attended was {v}.
        Upon leaving school, {s} entered {v}.
        When the letter of admission came from {v}, {s} {was|were} overjoyed.
        For {p} studies, {s} chose {v}.
        For several years, the library of {v} was where {s} could be found, preparing for a degree.
        Graduation day at {v} found {o} in a borrowed gown."""
    ),
    "major": _lines(
        """{s} studied {v}.
        {s} took a degree in {v}.
        {s} earned a degree in {v}.
        {s} specialised in {v}.
        {s} decided to study {v}.
        {s} {was|were} trained in {v}.
        {s} wrote a thesis in {v}.
        {p} major was {v}.
        {p} field of study was {v}.
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
        The diploma on {p} wall is in {v}.
        {s} read {v} with great zeal.
        {s} graduated in {v}.
        {s} {was|were} a student of {v}.
        {s} {was|were} a graduate in {v}.
        {s} {holds|hold} a degree in {v}.
        {s} {holds|hold} a diploma in {v}.
        {s} {has|have} an academic background in {v}.
        {s} {was|were} awarded a degree in {v}.
        {s} {was|were} enrolled in the {v} programme.
        {s} {was|were} drawn to {v} as a field of study.
        {s} attended lectures in {v}.
        {s} completed a degree programme in {v}.
        {s} completed {p} studies in {v}.
        {s} concentrated in {v} as an undergraduate.
        {s} decided upon {v} after much thought.
        {s} declared {v} as {p} major in the second year.
        {s} enrolled in {v} after a long talk with {p} father.
        {s} finished with a diploma in {v}.
        {s} focused {p} coursework on {v}.
        {s} gained {p} qualification in {v}.
        {s} opted for {v} when it came to choosing a subject.
        {s} passed {p} examinations in {v}.
        {s} picked {v} from a long list of subjects.
        {s} pursued a degree in {v}.
        {s} pursued studies in {v}.
        {s} received {p} academic training in {v}.
        {s} sat final examinations in {v}.
        {s} signed up for {v} as a student.
        {s} switched to {v} after one term and never regretted it.
        {s} took {v} as {p} main subject.
        {s} trained in the discipline of {v}.
        {s} wrote {p} dissertation on a question of {v}.
        {s}, a student of {v}, filled one notebook after another.
        {s}, who majored in {v}, {was|were} often asked for explanations.
        {s}, who had studied {v}, found it useful all {p} life.
        {s}, with a degree in {v}, surprised everyone by playing the accordion.
        {p} academic discipline was {v}.
        {p} academic field is {v}.
        {p} bachelor's degree was in {v}.
        {p} chosen subject was {v}.
        {p} coursework was mostly in {v}.
        {p} degree course was {v}.
        {p} diploma was in {v}.
        {p} examinations were in {v}.
        {p} faculty was that of {v}.
        {p} formal training was in {v}.
        {p} higher education was in {v}.
        {p} main subject as a student was {v}.
        {p} studies were in {v}.
        {p} thesis dealt with a problem in {v}.
        {p} transcript lists {v} as the major.
        {p} university subject was {v}.
        {v} is the discipline in which {s} took a degree.
        {v} is the field that {s} studied.
        {v} is what {s} studied.
        {v} became the subject of {p} studies.
        {v} was {p} chosen field of study.
        {v} was {p} main subject as a student.
        {v} was the course that {s} enrolled in.
        {v}, which {s} studied for years, never lost its charm.
        {v}, {p} major, was considered a difficult subject.
        As {p} major, {s} picked {v}.
        As an undergraduate, {s} studied {v}.
        For {p} degree, {s} chose {v}.
        Among the many subjects on offer, {s} preferred {v} and took a degree in it.
        Lectures in {v} filled {p} student days.
        The degree that {s} earned was in {v}.
        The department of {v} is where {s} spent {p} student years.
        The subject in which {s} graduated was {v}.
        The subject of {p} degree was {v}.
        Having studied {v}, {s} looked at many things differently.
        Inspired by an uncle, {s} chose to major in {v}.
        Of all disciplines, {s} chose {v} for {p} degree.
        Examiners praised {p} final paper in {v}.
        When it came to choosing a major, {s} did not hesitate to take {v}."""
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
        As an employee of {v}, {s} learned to plan ahead.
        {s} {was|were} recruited by {v}.
        {s} {was|were} taken on by {v}.
        {s} {was|were} engaged by {v}.
        {s} {was|were} on the payroll of {v}.
        {s} {was|were} an employee of {v}.
        {s} {was|were} a clerk at {v}.
        {s} {was|were} a trusted member of staff at {v}.
        {s} {was|were} promoted twice at {v}.
        {s} {is|are} a member of staff at {v}.
        {s} {works|work} at {v}.
        {s} {holds|hold} a post at {v}.
        {s} {heads|head} a small team at {v}.
        {s} {draws|draw} a salary from {v}.
        {s} began as a clerk with {v}.
        {s} began {p} career with {v}.
        {s} started out at {v}.
        {s} started at the bottom at {v} and worked {p} way up.
        {s} entered the service of {v}.
        {s} entered the employment of {v}.
        {s} earned {p} living at {v}.
        {s} gave the best years of {p} career to {v}.
        {s} held a position at {v}.
        {s} led a department at {v}.
        {s} managed a team at {v}.
        {s} obtained a post with {v}.
        {s} remained with {v} until retirement.
        {s} retired from {v} with a gold watch.
        {s} signed on with {v}.
        {s} secured a job at {v}.
        {s} served {v} loyally for many years.
        {s} served on the staff of {v}.
        {s} spent {p} career at {v}.
        {s} spent {p} working life with {v}.
        {s} took up employment with {v}.
        {s} took up a post at {v}.
        {s} turned down two other offers to join {v}.
        {s} went to work for {v}.
        {s}, an employee of {v}, {was|were} never late.
        {s}, who worked for {v}, cycled in all weathers.
        {s}, on the staff of {v} for years, trained many apprentices.
        {s} (employed by {v}) {was|were} a keen chess player in the lunch hour.
        {p} career began at {v}.
        {p} career led {o} to {v}.
        {p} career is bound up with {v}.
        {p} colleagues at {v} called {o} tireless.
        {p} contract of employment was with {v}.
        {p} curriculum vitae names {v} as the employer.
        {p} first and only employer was {v}.
        {p} job was with {v}.
        {p} job at {v} brought long days and good pay.
        {p} name appears on the payroll of {v}.
        {p} pay slips were signed by {v}.
        {p} position at {v} carried some responsibility.
        {p} professional home was {v}.
        {p} professional career belongs to {v}.
        {p} superiors at {v} thought highly of {o}.
        {p} work for {v} earned {o} respect.
        {v} employed {o} for many years.
        {v} engaged {o} after a short interview.
        {v} took {o} on as a trainee.
        {v} recruited {o} straight away.
        {v} gave {o} a job.
        {v} gave {o} employment.
        {v} is where {s} made a career.
        {v} is the firm that employed {o}.
        {v} paid {p} wages.
        {v} was the firm on whose payroll {s} stood.
        {v} was {p} professional home.
        {v}, the firm that {s} worked for, valued punctuality.
        {v}, {p} employer, allowed {o} one free afternoon a week.
        Among the staff of {v}, {s} {was|were} known for neat work.
        As a member of staff at {v}, {s} enjoyed a good reputation.
        At {v}, {s} held a post of some importance.
        At {v}, {s} headed a team of six.
        Colleagues from {v} remember {o} fondly.
        For most of {p} career, {s} worked for {v}.
        Professionally, {s} found a home at {v}.
        The company that employed {o} was {v}.
        The firm where {s} worked was called {v}.
        The managers of {v} soon entrusted {o} with larger tasks.
        The staff magazine of {v} once printed {p} portrait.
        Through an advertisement in the newspaper, {s} came to work for {v}.
        When {v} was looking for staff, {s} applied and got the job.
        With {v} as {p} employer, {s} felt secure."""
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
        The office where {s} worked was located in {v}.
        {s} {was|were} employed in {v}.
        {s} {was|were} posted to {v}.
        {s} {was|were} sent to {v} for work.
        {s} {was|were} transferred to an office in {v}.
        {s} {was|were} professionally active in {v}.
        {s} {has|have} a desk in an office in {v}.
        {s} {has|have} {p} place of work in {v}.
        {s} {commutes|commute} to {v}.
        {s} commuted by bus to a job in {v}.
        {s} cycled to work in {v}.
        {s} did {p} daily work in {v}.
        {s} earned {p} living in {v}.
        {s} earned {p} wages in {v}.
        {s} found work in {v}.
        {s} found employment in {v}.
        {s} followed {p} calling in {v}.
        {s} held a post in {v}.
        {s} kept an office in {v} overlooking the market.
        {s} made {p} career in {v}.
        {s} practised {p} profession in {v}.
        {s} rented a room in {v} to be close to work.
        {s} settled in {v} for professional reasons.
        {s} shared an office in {v} with two colleagues.
        {s} spent {p} working life in {v}.
        {s} spent {p} career in {v}.
        {s} started a job in {v}.
        {s} took a job in {v}.
        {s} took up a post in {v}.
        {s} travelled to {v} every weekday for work.
        {s}, who worked in {v}, knew every timetable by heart.
        {s}, whose office was in {v}, took lunch in the park.
        {s}, stationed in {v} for work, wrote home every week.
        {s}, employed in {v}, longed for the weekends.
        {s} (based in {v}) {was|were} always at work before eight.
        {p} branch was the one in {v}.
        {p} business address was in {v}.
        {p} career took {o} to {v}.
        {p} career was spent in {v}.
        {p} colleagues in {v} valued {p} calm.
        {p} commute ended in {v}.
        {p} daily commute led to {v}.
        {p} daily work was done in {v}.
        {p} duties kept {o} in {v}.
        {p} employment was in {v}.
        {p} job brought {o} to {v}.
        {p} job is in {v}.
        {p} job required {p} presence in {v}.
        {p} office is located in {v}.
        {p} office, on the third floor, was in {v}.
        {p} office in {v} had a view of the railway.
        {p} place of employment was {v}.
        {p} place of work, {v}, was an hour from home.
        {p} post was in {v}.
        {p} professional base was {v}.
        {p} professional life was centred on {v}.
        {p} working days were spent in {v}.
        {p} workplace was a plain building in {v}.
        {p} wages were earned in {v}.
        {v} is {p} place of work.
        {v} is where {p} office was.
        {v} is where {p} job was based.
        {v} is where {s} made a career.
        {v} was {p} professional base.
        {v} was where {p} career unfolded.
        {v} was where {s} had {p} desk.
        {v} was where {s} went to work each morning.
        {v}, where {s} worked, could be reached by train.
        A job brought {o} to {v}.
        A job in {v} put an end to {p} wandering.
        An office in {v} was where {s} spent the working week.
        As for work, {s} {was|were} based in {v}.
        For work, {s} went to {v}.
        For professional reasons, {s} moved to {v}.
        From Monday to Friday, {s} worked in {v}.
        On the job, {s} {was|were} to be found in {v}.
        Professionally, {s} {was|were} at home in {v}.
        The desk at which {s} worked stood in {v}.
        The job that {s} held was in {v}.
        The place where {s} worked was {v}.
        The search for work ended for {o} in {v}.
        The town in which {s} pursued {p} profession was {v}.
        Those who had business with {o} went to {p} office in {v}.
        To get to work, {s} travelled to {v}.
        Whenever there was work to do, {s} did it in {v}.
        When the office moved to {v}, {s} moved with it."""
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

PAIRS: dict[tuple[str, str], tuple[str, ...]] = {
    ("birth date", "birth place"): _lines(
        """{s} {was|were} born in {w} on {v}.
        On {v}, {s} {was|were} born in {w}.
        Born on {v} in {w}, {s} had a calm childhood.
        Born in {w} on {v}, {s} {was|were} the first child of the house.
        {s} came into the world on {v} in {w}.
        {s}, born in {w} on {v}, grew up among books.
        {p} life began in {w} on {v}.
        {p} life began on {v}, and {p} birthplace was {w}.
        {p} parents were living in {w} when {s} {was|were} born on {v}.
        In {w}, on {v}, {s} first saw the light of day.
        {s} ({v}, {w}) {was|were} the elder of two children.
        The register of {w} notes {p} birth on {v}.
        {s}, a native of {w}, {was|were} born on {v}.
        {s} entered the world in {w} on {v}.
        {s} {was|were} delivered in {w} on {v}.
        {s} {was|were} born at home in {w} on {v}, the third of five children.
        {s} arrived in a small hospital in {w} on {v}.
        {s} (born {v} in {w}) {was|were} raised by two aunts.
        {s}, who {was|were} born in {w} on {v}, stayed an only child.
        {p} birth in {w} on {v} was a surprise to everyone.
        {p} date of birth is {v} and {p} birthplace {w}.
        {p} birthplace is {w} and {p} birth date {v}.
        {p} mother gave birth to {o} on {v} in {w}.
        {p} certificate of birth was issued in {w} and bears the date {v}.
        {p} passport gives {v} as the date and {w} as the place of birth.
        {v} is the day and {w} the place of {p} birth.
        {w} is where {s} {was|were} born on {v}.
        {w} saw {p} birth on {v}.
        On {v}, in a house in {w}, {p} life began.
        On {v}, the hospital in {w} recorded {p} birth.
        A native of {w}, {s} came into the world on {v}.
        The story starts in {w}, where {s} {was|were} born on {v}.
        The church register of {w} shows that {s} {was|were} born on {v}."""
    ),
    ("university", "major"): _lines(
        """{s} majored in {w} at {v}.
        {s} earned a degree in {w} from {v}.
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
        With a degree in {w} from {v}, {s} entered the world of work.
        {s} {holds|hold} a degree in {w} from {v}.
        {s} completed a degree in {w} at {v}.
        {s} matriculated at {v} and read {w}.
        {s} obtained a diploma in {w} from {v}.
        {s} passed {p} examinations in {w} at {v}.
        {s} wrote a thesis in {w} at {v}.
        {s} went to {v} and chose {w} as {p} major.
        {s} {was|were} admitted to {v} to read {w}.
        {s}, a graduate of {v} in {w}, kept all of {p} lecture notes.
        {s}, who studied {w} at {v}, remained curious for life.
        {p} studies of {w} took place at {v}.
        {p} major at {v} was {w}.
        {p} alma mater is {v}, and {p} subject was {w}.
        {p} diploma from {v} is in {w}.
        {w} was what {s} studied at {v}.
        {w} was {p} subject at {v}.
        {v} is where {s} majored in {w}.
        {v} admitted {o} to its programme in {w}.
        As an undergraduate at {v}, {s} majored in {w}.
        The faculty of {w} at {v} counted {o} among its best students.
        Drawn to {w}, {s} enrolled at {v}."""
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
        Work for {v} took {o} to {w}.
        {s} {works|work} for {v} in {w}.
        {s} {was|were} hired by {v} to work in {w}.
        {s} {was|were} on the staff of {v} in {w}.
        {s} {was|were} posted to {w} by {v}.
        {s} held a position at {v} in {w}.
        {s} headed a team at {v} in {w}.
        {s} took a job with {v} in {w}.
        {s} commuted to {w}, where {s} worked for {v}.
        {s}, an employee of {v}, worked in {w}.
        {s}, who {was|were} employed by {v}, had {p} desk in {w}.
        {p} job with {v} was based in {w}.
        {p} office at {v} was located in {w}.
        {p} employer was {v}, and {p} place of work was {w}.
        {p} work place was {w}, and {p} employer was {v}.
        {v} employed {o} at its offices in {w}.
        {v} offered {o} a post in {w}.
        {v} had {o} work in {w}.
        {w} is where {s} worked for {v}.
        {w} became {p} work place when {v} hired {o}.
        As a member of staff of {v}, {s} {was|were} stationed in {w}.
        The payroll of {v} lists {o} under its branch in {w}."""
    ),
    ("birth date", "university"): _lines(
        """Born on {v}, {s} later attended {w}.
        {s}, born on {v}, graduated from {w}.
        {s}, an alumnus of {w}, {was|were} born on {v}.
        {s} {was|were} born on {v} and later studied at {w}.
        {p} birth date is {v} and {p} alma mater {w}.
        {p} life began on {v}, and {p} student years were spent at {w}.
        On {v} {s} {was|were} born, and {w} later gave {o} a degree.
        {s} ({v}) earned a degree from {w}.
        {s}, who {was|were} born on {v}, enrolled at {w}.
        {w} admitted {o}, who had been born on {v}, after a difficult examination.
        The student register of {w} gives {p} date of birth as {v}.
        The records of {w} show that {s}, a student there, {was|were} born on {v}.
        Born on {v}, {s} {was|were} the first in the family to study, and chose {w}."""
    ),
    ("birth place", "work place"): _lines(
        """Born in {v}, {s} later worked in {w}.
        {s} left {v}, the place of {p} birth, to work in {w}.
        From {v}, where {s} {was|were} born, {p} path led to a job in {w}.
        {s} {was|were} born in {v} but worked in {w}.
        {s} {was|were} born in {v} and found work in {w}.
        {s} exchanged {v}, {p} birthplace, for an office in {w}.
        {s}, a native of {v}, made a career in {w}.
        {s}, who {was|were} born in {v}, commuted to {w} for work.
        {p} cradle stood in {v}, {p} desk in {w}.
        {p} birthplace is {v}, but {p} place of work is {w}.
        {p} working days were spent in {w}, though {s} came from {v} by birth.
        In {w} {s} worked, but in {v} {s} {was|were} born.
        The road from {v}, {p} place of birth, led {o} to a job in {w}."""
    ),
    ("major", "company"): _lines(
        """With a degree in {v}, {s} found work at {w}.
        {s} majored in {v} and then joined {w}.
        {s} studied {v} before {w} offered {o} a job.
        A degree in {v} opened the doors of {w} to {o}.
        {s} {holds|hold} a degree in {v} and {works|work} for {w}.
        {s} took a degree in {v} and a job with {w}.
        {s}, who had studied {v}, {was|were} hired by {w}.
        {s}, a graduate in {v}, {was|were} on the staff of {w}.
        {p} studies of {v} led to a post at {w}.
        {p} degree is in {v}, and {p} employer is {w}.
        {w} was looking for graduates in {v} and hired {o}.
        {w} employed {o} because of {p} degree in {v}.
        After {p} studies of {v}, {s} began a career at {w}.
        At {w}, {p} major in {v} proved to be of great use."""
    ),
    ("birth place", "university"): _lines(
        """{s} {was|were} born in {v} and studied at {w}.
        {s} left {v}, {p} birthplace, to study at {w}.
        {s}, a native of {v}, graduated from {w}.
        {s}, who {was|were} born in {v}, took {p} degree at {w}.
        Born in {v}, {s} went on to attend {w}.
        Born and raised in {v}, {s} won a place at {w}.
        From {v}, where {s} {was|were} born, {s} went to {w} as a student.
        {p} birthplace is {v} and {p} alma mater {w}.
        {p} studies at {w} took {o} away from {v}, where {s} {was|were} born.
        {p} life began in {v}, and {p} student years passed at {w}.
        {w} awarded a degree to {o}, who had been born in {v}.
        A scholarship from {w} let {o} leave {v}, the town of {p} birth."""
    ),
    ("university", "company"): _lines(
        """{s} graduated from {v} and joined {w}.
        {s} studied at {v} before {w} hired {o}.
        {s} came to {w} straight from {v}, where {s} had taken a degree.
        {s} worked for {w} after completing {p} studies at {v}.
        {s}, a graduate of {v}, {was|were} employed by {w}.
        {s}, who attended {v}, built {p} career at {w}.
        {p} alma mater is {v}, and {p} employer was {w}.
        {p} degree from {v} helped {o} to a position with {w}.
        After {p} years as a student at {v}, {s} found a job at {w}.
        With a diploma from {v}, {s} applied to {w} and got the post.
        {w} recruited {o} at a fair for students of {v}.
        Having left {v} with a degree, {s} signed a contract with {w}."""
    ),
    ("university", "work place"): _lines(
        """{s} studied at {v} and later worked in {w}.
        {s} attended {v} before taking a job in {w}.
        {s} moved to {w} for work after graduating from {v}.
        {s}, a graduate of {v}, {was|were} based in {w} for work.
        {s}, educated at {v}, had an office in {w}.
        {p} studies took place at {v}, {p} career in {w}.
        {p} degree from {v} led to employment in {w}.
        {p} alma mater is {v}, and {p} work place {w}.
        After {v}, where {s} had studied, {p} profession took {o} to {w}.
        In {w}, where {s} worked, few knew that {s} had studied at {v}.
        With a degree from {v}, {s} went to work in {w}.
        Once {p} studies at {v} were over, {s} found a post in {w}."""
    ),
    ("major", "work place"): _lines(
        """{s} majored in {v} and worked in {w}.
        {s} studied {v} and then took a job in {w}.
        {s}, who had a degree in {v}, {was|were} stationed in {w}.
        {s}, a graduate in {v}, found work in {w}.
        {p} degree was in {v}, and {p} office was in {w}.
        {p} knowledge of {v}, {p} major, was in demand in {w}, where {s} worked.
        {p} studies of {v} prepared {o} for a post in {w}.
        After a degree in {v}, {s} moved to {w} for work.
        With a diploma in {v}, {s} set off for a job in {w}.
        In {w}, {s} worked in a field far from {v}, {p} major.
        Having read {v} at university, {s} pursued a career in {w}.
        An office in {w} was looking for graduates in {v}, and hired {o}."""
    ),
    ("birth place", "company"): _lines(
        """{s} {was|were} born in {v} and worked for {w}.
        {s}, a native of {v}, joined {w}.
        {s}, who {was|were} born in {v}, {was|were} employed by {w}.
        {s}, originally from {v}, made a career at {w}.
        {p} birthplace is {v}, and {p} employer is {w}.
        {p} life began in {v}, and {p} career began at {w}.
        Born in {v}, {s} later found a position with {w}.
        Born to a large family in {v}, {s} rose through the ranks of {w}.
        {w} hired {o}, who came from {v} by birth, as a trainee.
        At {w}, {s} {was|were} the only employee born in {v}.
        Colleagues at {w} knew that {s} {was|were} born in {v}.
        From {v}, {p} place of birth, {s} set out to work for {w}."""
    ),
    ("birth date", "major"): _lines(
        """{s} {was|were} born on {v} and studied {w}.
        {s}, born on {v}, majored in {w}.
        {s}, who {was|were} born on {v}, took a degree in {w}.
        {s} (born {v}) chose {w} as {p} field of study.
        {p} date of birth is {v}, and {p} major was {w}.
        {p} diploma in {w} gives {v} as the date of birth.
        Born on {v}, {s} grew up to study {w}.
        Born on {v}, {s} felt drawn to {w} and took a degree in it.
        {w} became {p} major, many years after {s} {was|were} born on {v}.
        On {v} {s} {was|were} born, and many years later {s} graduated in {w}."""
    ),
}

# Wordings of facts may be led in by these when they begin with the person, or closed by those below.
OPENINGS = _lines(
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
    People who met {o} say that
    As the story goes,
    In those days,
    As is well known,
    In short,
    As colleagues remember,
    As one newspaper put it,
    The obituary mentions that
    Few people know that
    It is a matter of record that"""
)
CLOSINGS = _lines(
    """, as the old letters show
    , which few people know
    , as {p} friends like to tell
    , according to the family
    , a detail that relatives like to repeat
    , much to the delight of {p} relatives
    , if the records can be trusted
    , and that never changed
    , though {s} rarely spoke about it
    , as everyone in the neighbourhood knows
    , as a cousin once wrote
    , or so the story goes
    , which made {p} grandparents very proud
    , as the local newspaper reported
    , a fact that {s} mentioned only in passing
    , and nobody was surprised
    , as several documents confirm
    , something that {s} never regretted
    , as can be read in the archives"""
)

CONNECTING = _lines(
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
    This is how the story is usually told.
    {s} played the violin badly but with feeling.
    {s} could talk for hours about birds.
    {s} had a weakness for lemon cake.
    {s} wore the same coat for twenty winters.
    {s} {was|were} seldom seen without a hat.
    {s} collected stamps as a child and gave them all away later.
    {s} disliked speeches and avoided giving them.
    {s} never learned to drive.
    {s} wrote with a fountain pen until the end.
    {s} had a remarkable memory for faces.
    {s} mended {p} own shoes all {p} life.
    {p} voice was low and pleasant.
    {p} shelves bent under the weight of novels.
    {p} letters are full of small drawings.
    {p} door was open to anyone who needed help.
    {p} sense of direction was notoriously poor.
    {p} favourite season was autumn.
    Friends found {o} generous to a fault.
    Visitors were always offered soup.
    Nobody ever heard {o} complain.
    The years that followed were happy ones.
    The rest is quickly told.
    Photographs from that time show a serious face.
    An old bicycle served {o} well for years.
    As so often in life, chance played its part.
    Opinions differ about what happened next.
    Hard work and a little luck did the rest.
    It would be wrong to speak of an easy life.
    Rainy days were spent at the chessboard."""
)
