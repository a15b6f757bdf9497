"""The words of the demonstration grammar, as tables.

Columns are separated by two or more spaces; ``-`` means none. Classes (``person``, ``edible`` ...) say which nouns an
adjective describes and which nouns a verb takes, so that the sentences make sense; GROUPS names sets of them. Forms
that rules predict are derived (inflection, english).
"""

GROUPS = {
    "living": "person,animal",
    "goods": "thing,edible,drink,vehicle",
    "any": "person,animal,thing,edible,drink,vehicle,place",
}

# english     plural        german              plural         classes
# "weak" masculines take their plural form in every singular case but the nominative (der Junge, den Jungen).
NOUNS = """
man           men           der Mann            Männer         person
woman         women         die Frau            Frauen         person
child         children      das Kind            Kinder         person
boy           boys          der Junge           Jungen         person,weak
girl          girls         das Mädchen         Mädchen        person
teacher       teachers      der Lehrer          Lehrer         person
doctor        doctors       der Arzt            Ärzte          person
student       students      der Student         Studenten      person,weak
neighbour     neighbours    der Nachbar         Nachbarn       person,weak
friend        friends       der Freund          Freunde        person
mother        mothers       die Mutter          Mütter         person
father        fathers       der Vater           Väter          person
brother       brothers      der Bruder          Brüder         person
sister        sisters       die Schwester       Schwestern     person
daughter      daughters     die Tochter         Töchter        person
son           sons          der Sohn            Söhne          person
aunt          aunts         die Tante           Tanten         person
grandmother   grandmothers  die Großmutter      Großmütter     person
colleague     colleagues    der Kollege         Kollegen       person,weak
gardener      gardeners     der Gärtner         Gärtner        person
guest         guests        der Gast            Gäste          person
dog           dogs          der Hund            Hunde          animal
cat           cats          die Katze           Katzen         animal
horse         horses        das Pferd           Pferde         animal
bird          birds         der Vogel           Vögel          animal
cow           cows          die Kuh             Kühe           animal
mouse         mice          die Maus            Mäuse          animal
bear          bears         der Bär             Bären          animal,weak
book          books         das Buch            Bücher         readable,thing
letter        letters       der Brief           Briefe         readable,thing
newspaper     newspapers    die Zeitung         Zeitungen      readable,thing
poem          poems         das Gedicht         Gedichte       readable
story         stories       die Geschichte      Geschichten    readable
apple         apples        der Apfel           Äpfel          edible
cake          cakes         der Kuchen          Kuchen         edible
egg           eggs          das Ei              Eier           edible
potato        potatoes      die Kartoffel       Kartoffeln     edible
pear          pears         die Birne           Birnen         edible
tomato        tomatoes      die Tomate          Tomaten        edible
bread         -             das Brot            -              edible
cheese        -             der Käse            -              edible
meat          -             das Fleisch         -              edible
soup          soups         die Suppe           Suppen         edible
water         -             das Wasser          -              drink
milk          -             die Milch           -              drink
coffee        -             der Kaffee          -              drink
tea           -             der Tee             -              drink
wine          -             der Wein            -              drink
beer          -             das Bier            -              drink
coat          coats         der Mantel          Mäntel         clothing,thing
hat           hats          der Hut             Hüte           clothing,thing
shirt         shirts        das Hemd            Hemden         clothing,thing
jacket        jackets       die Jacke           Jacken         clothing,thing
dress         dresses       das Kleid           Kleider        clothing,thing
shoe          shoes         der Schuh           Schuhe         clothing,thing
key           keys          der Schlüssel       Schlüssel      thing
picture       pictures      das Bild            Bilder         thing
flower        flowers       die Blume           Blumen         thing
ball          balls         der Ball            Bälle          thing,toy
cup           cups          die Tasse           Tassen         thing
knife         knives        das Messer          Messer         thing
gift          gifts         das Geschenk        Geschenke      thing,openable
bag           bags          die Tasche          Taschen        thing,openable
bottle        bottles       die Flasche         Flaschen       thing,openable
box           boxes         die Kiste           Kisten         thing,openable
chair         chairs        der Stuhl           Stühle         thing
clock         clocks        die Uhr             Uhren          thing
bicycle       bicycles      das Fahrrad         Fahrräder      thing,vehicle
car           cars          das Auto            Autos          vehicle
bus           buses         der Bus             Busse          vehicle
train         trains        der Zug             Züge           vehicle
ship          ships         das Schiff          Schiffe        vehicle
door          doors         die Tür             Türen          openable
window        windows       das Fenster         Fenster        openable
lamp          lamps         die Lampe           Lampen         device,thing
radio         radios        das Radio           Radios         device,thing
machine       machines      die Maschine        Maschinen      device
computer      computers     der Computer        Computer       device,thing
kitchen       kitchens      die Küche           Küchen         room,place
room          rooms         das Zimmer          Zimmer         room,place
office        offices       das Büro            Büros          room,place
garden        gardens       der Garten          Gärten         place
house         houses        das Haus            Häuser         place
church        churches      die Kirche          Kirchen        place
school        schools       die Schule          Schulen        place
hotel         hotels        das Hotel           Hotels         place
restaurant    restaurants   das Restaurant      Restaurants    place
city          cities        die Stadt           Städte         place
village       villages      das Dorf            Dörfer         place
forest        forests       der Wald            Wälder         place
park          parks         der Park            Parks          place
station       stations      der Bahnhof         Bahnhöfe       place
lake          lakes         der See             Seen           place
bridge        bridges       die Brücke          Brücken        place
tree          trees         der Baum            Bäume          place
"""

# english       german        stem        rank  classes
# The stem is the attributive one where it differs (ein teures Buch); the rank orders two adjectives before one noun.
ADJECTIVES = """
good            gut           -           0     readable,edible,drink,person
beautiful       schön         -           0     thing,place,animal
friendly        freundlich    -           0     person
funny           lustig        -           0     person,readable,animal
clever          klug          -           0     living
interesting     interessant   -           0     readable
boring          langweilig    -           0     readable
expensive       teuer         teur        0     thing,vehicle,edible,drink
cheap           billig        -           0     thing,vehicle,edible,drink
quiet           ruhig         -           0     place
famous          berühmt       -           0     person,place
heavy           schwer        -           0     thing,device
fast            schnell       -           0     vehicle,animal
big             groß          -           1     thing,animal,place,vehicle,device,openable
small           klein         -           1     living,thing,place,vehicle,device,openable
long            lang          -           1     readable
short           kurz          -           1     readable
old             alt           -           2     living,thing,place,vehicle,device,openable
new             neu           -           2     thing,place,vehicle,device
young           jung          -           2     living
fresh           frisch        -           2     edible,drink
tired           müde          müd         2     living
hungry          hungrig       -           2     living
sick            krank         -           2     living
happy           glücklich     -           2     person
rich            reich         -           2     person
cold            kalt          -           2     drink,place
hot             heiß          -           2     drink
warm            warm          -           2     edible,clothing
dark            dunkel        dunkl       2     place
red             rot           -           3     thing,vehicle,openable
blue            blau          -           3     thing,vehicle,openable
green           grün          -           3     thing,vehicle,openable
black           schwarz       -           3     thing,vehicle,animal
white           weiß          -           3     thing,vehicle,animal,openable
yellow          gelb          -           3     clothing,vehicle
"""

# english    past        german         3rd sg.   perfect             frame          subject         object                trait
# A + marks an English particle (pick him up), an underscore a preposition or particle that stays (look for him);
# a bar marks a German separable prefix. Frames: intr (no object), acc, dat, acc+dat, motion (with a direction),
# copula (with an adjective), or English preposition:German preposition+case of a prepositional object. The subject is a
# person where nothing is said. Traits: "place" goes well with an adverbial of place, "state" badly with a modal verb.
VERBS = """
sleep        slept       schlafen       schläft   hat geschlafen      intr           living          -                     place
work         worked      arbeiten       -         hat gearbeitet      intr           -               -                     place
laugh        laughed     lachen         -         hat gelacht         intr           -               -                     place
dance        danced      tanzen         -         hat getanzt         intr           -               -                     place
sing         sang        singen         -         hat gesungen        intr           living          -                     place
cook         cooked      kochen         -         hat gekocht         intr           -               -                     place
sit          sat         sitzen         -         hat gesessen        intr           living          -                     place
get_up       got         auf|stehen     -         ist aufgestanden    intr           living          -                     -
arrive       arrived     an|kommen      -         ist angekommen      intr           person,vehicle  -                     -
come_back    came        zurück|kommen  -         ist zurückgekommen  intr           living,vehicle  -                     -
fall_asleep  fell        ein|schlafen   schläft   ist eingeschlafen   intr           living          -                     place
watch_TV     watched     fern|sehen     sieht     hat ferngesehen     intr           -               -                     -
see          saw         sehen          sieht     hat gesehen         acc            living          living,vehicle        place
hear         heard       hören          -         hat gehört          acc            living          living                state
buy          bought      kaufen         -         hat gekauft         acc            -               goods                 -
sell         sold        verkaufen      -         hat verkauft        acc            -               thing,vehicle,animal  -
find         found       finden         -         hat gefunden        acc            living          thing,animal          place
look_for     looked      suchen         -         hat gesucht         acc            living          thing,living          place
read         read        lesen          liest     hat gelesen         acc            -               readable              place
write        wrote       schreiben      -         hat geschrieben     acc            -               readable              place
eat          ate         essen          isst      hat gegessen        acc            living          edible                place
drink        drank       trinken        -         hat getrunken       acc            -               drink                 place
love         loved       lieben         -         hat geliebt         acc            -               living                state
know         knew        kennen         -         hat gekannt         acc            -               person,readable       state
visit        visited     besuchen       -         hat besucht         acc            -               person,place          -
carry        carried     tragen         trägt     hat getragen        acc            -               thing                 -
repair       repaired    reparieren     -         hat repariert       acc            -               vehicle,device        -
lose         lost        verlieren      -         hat verloren        acc            -               thing                 state
forget       forgot      vergessen      vergisst  hat vergessen       acc            -               thing,person          state
need         needed      brauchen       -         hat gebraucht       acc            -               goods,person          state
wash         washed      waschen        wäscht    hat gewaschen       acc            -               clothing,vehicle      -
draw         drew        zeichnen       -         hat gezeichnet      acc            -               thing,animal          place
meet         met         treffen        trifft    hat getroffen       acc            -               person                place
understand   understood  verstehen      -         hat verstanden      acc            -               person,readable       state
feed         fed         füttern        -         hat gefüttert       acc            -               animal                -
have         had         haben          -         hat gehabt          acc            -               thing,animal          state
call         called      an|rufen       -         hat angerufen       acc            -               person                -
invite       invited     ein|laden      lädt      hat eingeladen      acc            -               person                -
pick+up      picked      ab|holen       -         hat abgeholt        acc            -               person                -
turn+off     turned      aus|schalten   -         hat ausgeschaltet   acc            -               device                -
turn+on      turned      ein|schalten   -         hat eingeschaltet   acc            -               device                -
open         opened      auf|machen     -         hat aufgemacht      acc            -               openable              -
close        closed      zu|machen      -         hat zugemacht       acc            -               openable              -
put+on       put         an|ziehen      -         hat angezogen       acc            -               clothing              -
tidy+up      tidied      auf|räumen     -         hat aufgeräumt      acc            -               room                  -
throw+away   threw       weg|werfen     wirft     hat weggeworfen     acc            -               thing                 -
bring+along  brought     mit|bringen    -         hat mitgebracht     acc            -               thing,animal          -
help         helped      helfen         hilft     hat geholfen        dat            -               person                -
thank        thanked     danken         -         hat gedankt         dat            -               person                -
answer       answered    antworten      -         hat geantwortet     dat            -               person                -
follow       followed    folgen         -         ist gefolgt         dat            living          living,vehicle        -
listen_to    listened    zu|hören       -         hat zugehört        dat            -               person                -
give         gave        geben          gibt      hat gegeben         acc+dat        -               goods                 -
show         showed      zeigen         -         hat gezeigt         acc+dat        -               thing,place           -
send         sent        schicken       -         hat geschickt       acc+dat        -               readable,thing        -
lend         lent        leihen         -         hat geliehen        acc+dat        -               thing,vehicle         -
give+back    gave        zurück|geben   gibt      hat zurückgegeben   acc+dat        -               thing                 -
wait         waited      warten         -         hat gewartet        for:auf+acc    -               person,vehicle        -
think        thought     denken         -         hat gedacht         of:an+acc      -               living                -
talk         talked      sprechen       spricht   hat gesprochen      to:mit+dat     -               person                -
dream        dreamed     träumen        -         hat geträumt        of:von+dat     -               living,vehicle        -
play         played      spielen        -         hat gespielt        with:mit+dat   -               animal,toy            -
look         looked      auf|passen     -         hat aufgepasst      after:auf+acc  -               living                -
fall_down    fell        hin|fallen     fällt     ist hingefallen     intr           living          -                     place
go           went        gehen          -         ist gegangen        motion         -               place                 -
run          ran         laufen         läuft     ist gelaufen        motion         living          place                 -
drive        drove       fahren         fährt     ist gefahren        motion         person,vehicle  place                 -
come         came        kommen         -         ist gekommen        motion         living          place                 -
go_back      went        zurück|gehen   -         ist zurückgegangen  motion         -               place                 -
be           was         sein           -         ist gewesen         copula         any             -                     -
"""

# english  past      german   3rd sg.  perfect       conjunction
CLAUSE_VERBS = """
know       knew      wissen   -        hat gewusst   that
say        said      sagen    -        hat gesagt    that
believe    believed  glauben  -        hat geglaubt  that
hope       hoped     hoffen   -        hat gehofft   that
hear       heard     hören    -        hat gehört    that
ask        asked     fragen   -        hat gefragt   whether
"""

# noun         where: en        de (+dat)    whither: en    de+case
PLACES = """
kitchen        in               in           into           in+acc
room           in               in           into           in+acc
office         in               in           into           in+acc
garden         in               in           into           in+acc
house          in               in           into           in+acc
house          behind           hinter       to             zu+dat
church         in front of      vor          into           in+acc
school         next to          neben        to             zu+dat
hotel          in               in           to             zu+dat
restaurant     in               in           into           in+acc
city           in               in           into           in+acc
village        in               in           into           in+acc
forest         in               in           into           in+acc
park           in               in           into           in+acc
station        at               an           to             zu+dat
lake           at               an           to             zu+dat
bridge         under            unter        over           über+acc
tree           under            unter        behind         hinter+acc
"""

# english          german           tense
TIMES = """
today              heute            any
this evening       heute Abend      any
on Monday          am Montag        any
on Friday          am Freitag       any
in the morning     am Morgen        any
now                jetzt            present
tomorrow           morgen           present
next week          nächste Woche    present
yesterday          gestern          past
last week          letzte Woche     past
"""

# english      german    tenses
CONJUNCTIONS = """
because        weil      any
although       obwohl    any
while          während   same
before         bevor     same
if             wenn      present
when           wenn      present
when           als       past
"""

# english      past            german  1st/2nd/3rd sg., plural  the same of the past
MODALS = """
can            could           können  kann kannst kann können  konnte konntest konnte konnten
have to        had to          müssen  muss musst muss müssen   musste musstest musste mussten
want to        wanted to       wollen  will willst will wollen  wollte wolltest wollte wollten
be allowed to  was allowed to  dürfen  darf darfst darf dürfen  durfte durftest durfte durften
should         -               sollen  soll sollst soll sollen  -
"""

# Verbs whose present or past cannot be derived: 1st, 2nd, 3rd person singular, plural.
PRESENT = {
    "sein": ("bin", "bist", "ist", "sind"),
    "haben": ("habe", "hast", "hat", "haben"),
    "wissen": ("weiß", "weißt", "weiß", "wissen"),
}
PRETERITE = {
    "sein": ("war", "warst", "war", "waren"),
    "haben": ("hatte", "hattest", "hatte", "hatten"),
    "wissen": ("wusste", "wusstest", "wusste", "wussten"),
}
