"""Names with a meaning in wikitext: tags, codes of languages and of countries.

This module is data for `markup`, without logic. Words that differ by language are in `languages`.
"""

# The content of these tags, up to the first closing tag, is not wikitext. This is the rule of MediaWiki's preprocessor.
_HIDDEN = "ref gallery timeline imagemap graph score hiero templatedata templatestyles mapframe maplink categorytree inputbox references"
_HIDDEN += " section indicator style script"
FORMULAS = ("math", "chem", "ce")
LITERAL_TAGS = ("nowiki", "pre", "source", "syntaxhighlight")
EXTENSIONS = frozenset((*_HIDDEN.split(), *FORMULAS, *LITERAL_TAGS))
# The tags of MediaWiki (its Sanitizer and preprocessor). Everything else in angle brackets, such as `<T>` in a program, is text.
_BREAKING_TAGS = "br hr p div li ul ol dl dd dt tr blockquote center poem h1 h2 h3 h4 h5 h6 caption"
BLOCK_TAGS = frozenset(_BREAKING_TAGS.split())
_INLINE_TAGS = "abbr b bdi bdo big cite code data del dfn em font i ins kbd link mark meta q rb rp rt rtc ruby s samp small span strike"
_INLINE_TAGS += " strong sub sup td th time tt u var wbr noinclude includeonly onlyinclude"
TAGS = "|".join(sorted({*BLOCK_TAGS, *_INLINE_TAGS.split(), *EXTENSIONS}, key=lambda name: (-len(name), name)))

# Codes of Wikipedias (meta.wikimedia.org, List of Wikipedias).
_CODES = """
ab ace ady af als alt am an ang ar arc ary arz as ast atj av avk awa ay az azb ba ban bar bat-smg bcl be be-tarask be-x-old bg bh bi bjn
blk bm bn bo bpy br bs bug bxr ca cbk-zam cdo ce ceb ch chr chy ckb co cr crh cs csb cu cv cy da dag de din diq dsb dty dv dz ee el eml en
eo es et eu ext fa ff fi fiu-vro fj fo fr frp frr fur fy ga gag gan gcr gd gl glk gn gom gor got gu guw gv ha hak haw he hi hif hr hsb ht
hu hy hyw ia id ie ig ik ilo inh io is it iu ja jam jbo jv ka kaa kab kbd kbp kg ki kk kl km kn ko koi krc ks ksh ku kv kw ky la lad lb
lbe lez lfn lg li lij lld lmo ln lo lt ltg lv mad mai map-bms mdf mg mhr mi min mk ml mn mni mnw mr mrj ms mt mwl my myv mzn na nah nap
nds nds-nl ne new nia nl nn no nov nqo nrm nso nv ny oc olo om or os pa pag pam pap pcd pcm pdc pfl pi pih pl pms pnb pnt ps pt pwn qu rm
rmy rn ro roa-rup roa-tara ru rue rw sa sah sat sc scn sco sd se sg sh shi shn si simple sk skr sl sm smn sn so sq sr srn ss st stq su sv
sw szl szy ta tay tcy te tet tg th ti tk tl tn to tpi tr trv ts tt tum tw ty tyv udm ug uk ur uz ve vec vep vi vls vo wa war wo wuu xal xh
xmf yi yo za zea zh zh-classical zh-min-nan zh-yue zu
"""
LANGUAGES = frozenset(_CODES.split())
# Templates that are named after a code of a country (International Olympic Committee, and ISO 3166) show the flag and the name.
_COUNTRIES = """
AFG Afghanistan, ALB Albania, ALG Algeria, ARG Argentina, ARM Armenia, AUS Australia, AUT Austria, AZE Azerbaijan, BAN Bangladesh, BEL
Belgium, BLR Belarus, BOL Bolivia, BRA Brazil, BUL Bulgaria, CAM Cambodia, CAN Canada, CHI Chile, CHN China, COL Colombia, CRO Croatia,
CUB Cuba, CYP Cyprus, CZE Czech Republic, DEN Denmark, DEU Germany, DNK Denmark, ECU Ecuador, EGY Egypt, ENG England, ESP Spain, EST
Estonia, ETH Ethiopia, FIN Finland, FRA France, GBR United Kingdom, GEO Georgia, GER Germany, GHA Ghana, GRC Greece, GRE Greece, HKG Hong
Kong, HUN Hungary, INA Indonesia, IND India, IRE Ireland, IRI Iran, IRL Ireland, IRN Iran, IRQ Iraq, ISL Iceland, ISR Israel, ITA Italy,
JAM Jamaica, JPN Japan, KAZ Kazakhstan, KEN Kenya, KOR South Korea, LAT Latvia, LTU Lithuania, LUX Luxembourg, MAS Malaysia, MEX Mexico,
MNE Montenegro, NED Netherlands, NGR Nigeria, NIR Northern Ireland, NLD Netherlands, NOR Norway, NZL New Zealand, PAK Pakistan, PER Peru,
PHI Philippines, POL Poland, POR Portugal, PRK North Korea, PRT Portugal, ROM Romania, ROU Romania, RSA South Africa, RUS Russia, SCO
Scotland, SRB Serbia, SIN Singapore, SUI Switzerland, SVK Slovakia, SVN Slovenia, SLO Slovenia, SWE Sweden, SYR Syria, THA Thailand, TPE
Chinese Taipei, TUN Tunisia, TUR Turkey, UGA Uganda, UK United Kingdom, UKR Ukraine, URS Soviet Union, URU Uruguay, USA United States, UZB
Uzbekistan, VEN Venezuela, VIE Vietnam, WAL Wales, YUG Yugoslavia, ZAF South Africa, ZIM Zimbabwe
"""
COUNTRIES = dict(entry.split(" ", 1) for entry in " ".join(_COUNTRIES.split()).split(", "))
