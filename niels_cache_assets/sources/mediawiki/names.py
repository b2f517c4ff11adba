"""Names with a meaning in wikitext (tags, namespaces, languages, headings of end matter). This module is data for `markup`, without
logic.
"""

import re

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

# Namespaces that show no text in a link, in the languages of the largest wikis.
_NO_TEXT = "file image category datei bild kategorie fichier catégorie archivo imagen categoría ficheiro imagem categoria"
_NO_TEXT += " immagine plik grafika kategoria bestand afbeelding categorie файл изображение категория зображення категорія"
_NO_TEXT += " fil kategori tiedosto kuva luokka soubor obrázek fájl kép kategória dosya resim fișier fişier imagine"
_NO_TEXT += " fitxer imatge berkas gambar"
_NO_TEXT += " αρχείο εικόνα κατηγορία датотека слика категорија ملف صورة تصنيف קובץ תמונה קטגוריה پرونده رده"
_NO_TEXT += " ファイル 画像 カテゴリ 文件 图像 分类 分類 파일 분류"
HIDDEN_NAMESPACES = frozenset(_NO_TEXT.split())
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
# Headings of sections without prose in the English Wikipedia (from its Manual of Style, Layout, with usual variants), in lower case.
# A heading that joins several of these headings ("Notes and references") counts as well.
_END_MATTER = """
references, reference, general references, additional references, specific references, references cited, citations, notes, footnotes,
endnotes, explanatory notes, explanatory footnotes, inline citations, works cited, cited works, literature cited, sources, primary
sources, secondary sources, general sources, online sources, cited sources, bibliography, selected bibliography, select bibliography,
further reading, suggested reading, recommended reading, additional reading, external links, external link, external sources, web links,
links, see also, related articles
"""
# The same of other Wikipedias, without headings that also head prose (such as "Literatur", which may be about literature).
_END_MATTER_OF_OTHERS = """
einzelnachweise, weblinks, siehe auch, anmerkungen, quellen, fußnoten, belege, quellen und einzelnachweise,
notes et références, références, voir aussi, liens externes, articles connexes, lien externe, notes et sources, bibliographie,
referencias, enlaces externos, véase también, notas, notas y referencias, bibliografía, fuentes,
note, altri progetti, collegamenti esterni, voci correlate, bibliografia, fonti,
referências, ligações externas, ver também, notas e referências, leitura adicional,
externe links, externe link, zie ook, bronnen, voetnoten, noten en/of referenties, referenties,
källor, externa länkar, se även, referenser, noter, fotnoter, vidare läsning,
przypisy, linki zewnętrzne, zobacz też, uwagi, źródła,
примечания, ссылки, см. также, источники, сноски
"""
END_MATTER = frozenset(f"{' '.join(_END_MATTER.split())}, {' '.join(_END_MATTER_OF_OTHERS.split())}".split(", "))
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
# The words that begin a redirect (MediaWiki, languages/messages). A link follows.
_REDIRECTS = "redirect weiterleitung redirection redirección redireccion rinvia redirecionamento doorverwijzing patrz przekieruj tam"
_REDIRECTS += (
    " omdirigering omdiriger ohjaus uudelleenohjaus yönlendirme yönlendi̇rme přesměruj átirányítás redirecteaza preusmjeri преусмери"
)
_REDIRECTS += " перенаправление перенапр перенаправлення виклад đổi alih تحويل تغییر_مسیر تغییرمسیر הפניה ανακατευθυνση 転送 リダイレクト"
_REDIRECTS += " 重定向 넘겨주기 पुनर्प्रेषित เปลี่ยนทาง"
REDIRECT = re.compile(rf"\s*#(?:{'|'.join(_REDIRECTS.split())})\s*:?\s*\[\[", re.IGNORECASE)
