"""Words of MediaWiki and of Wikipedias by language: namespaces without text, headings of end matter, and words of redirects.

This module is data, without logic. `site` chooses the words for a dump. Namespaces and redirects of all languages are recognized in every
dump, because a word of another language in these places is not prose. Headings of one language may be prose in another (German "Noten" are
also sheet music), so the headings in END_MATTER_OF count only in dumps of their language.

Source of namespaces and redirects: MediaWiki, languages/messages.
"""

# The namespaces of files and of categories, with former names, which links may still use. A dump names only the present names.
_NO_TEXT = """
file image category datei bild kategorie fichier catégorie archivo imagen categoría ficheiro imagem categoria immagine plik grafika
kategoria bestand afbeelding categorie файл изображение категория зображення категорія fil kategori tiedosto kuva luokka soubor obrázek
fájl kép kategória dosya resim fișier fişier imagine fitxer imatge berkas gambar αρχείο εικόνα κατηγορία датотека слика категорија ملف
صورة تصنيف קובץ תמונה קטגוריה پرونده رده ファイル 画像 カテゴリ 文件 图像 分类 分類 파일 분류 súbor slika kategorija datoteka vaizdas
attēls pilt dosiero bildo kategorio fitxategi irudi imaxe imago skeyti bilde bilete mynd файл картинка выява катэгорыя файла датотека
pilt kategooria flokkur fasciculus lêer billede şəkil kateqoriya 檔案 圖像 圖片 档案 图片 تصویر نگاره चित्र श्रेणी ไฟล์ ภาพ หมวดหมู่ চিত্র
বিষয়শ্রেণী படிமம் பகுப்பு ფაილი კატეგორია պատկեր կատեգորիա
"""
NO_TEXT = frozenset((*_NO_TEXT.split(), "tập tin", "hình", "thể loại"))

# Headings of sections without prose in the English Wikipedia (from its Manual of Style, Layout, with usual variants), in lower case.
# A heading that joins several of these headings ("Notes and references") counts as well.
_END_MATTER = """
references, reference, general references, additional references, specific references, references cited, citations, notes, footnotes,
endnotes, explanatory notes, explanatory footnotes, inline citations, works cited, cited works, literature cited, sources, primary
sources, secondary sources, general sources, online sources, cited sources, bibliography, selected bibliography, select bibliography,
further reading, suggested reading, recommended reading, additional reading, external links, external link, external sources, web links,
links, see also, related articles
"""
# The same headings in other Wikipedias, without headings that also head prose (such as "Literatur", which may be about literature).
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

_END_MATTER_OF = """
ar: مراجع, المراجع, المصادر, مصادر, وصلات خارجية, انظر أيضا, انظر أيضًا, انظر أيضاً, الهوامش, هوامش, ملاحظات, معرض صور;
bg: източници, външни препратки, вижте също, бележки, бележки и източници, допълнителна литература;
ca: referències, enllaços externs, notes i referències, bibliografia, notes;
cs: reference, poznámky, externí odkazy, související články, odkazy, poznámky a reference;
da: referencer, eksterne henvisninger, se også, kilder, noter, fodnoter, kilder og henvisninger, eksterne links;
de: quellenangaben, nachweise, einzelbelege, weiterführende literatur, fußnoten und einzelnachweise, siehe auch, weblink;
el: παραπομπές, εξωτερικοί σύνδεσμοι, δείτε επίσης, πηγές, σημειώσεις, υποσημειώσεις, βιβλιογραφία;
eo: referencoj, eksteraj ligiloj, vidu ankaŭ, notoj, fontoj, notoj kaj referencoj;
es: notas al pie, referencias y notas, enlace externo, otras lecturas, lecturas adicionales, bibliografía adicional;
et: viited, välislingid, vaata ka, märkused, allikad;
eu: erreferentziak, kanpo estekak, ikus, gainera, oharrak, bibliografia, oharrak eta erreferentziak, ikus gainera;
fa: منابع, پانویس, پیوند به بیرون, جستارهای وابسته, یادداشت‌ها, یادداشت, پانویس‌ها, برای مطالعهٔ بیشتر;
fi: lähteet, viitteet, aiheesta muualla, katso myös, kirjallisuutta, huomautukset, viitteet ja lähteet;
fr: notes, annexes, sources, référence, lien connexe, liens internes, notes et référence, pour en savoir plus, voir également;
gl: notas, véxase tamén, ligazóns externas, outros artigos, bibliografía, referencias;
he: הערות שוליים, קישורים חיצוניים, ראו גם, לקריאה נוספת, ביאורים;
hi: सन्दर्भ, संदर्भ, बाहरी कड़ियाँ, इन्हें भी देखें, टिप्पणियाँ, बाहरी कड़ियां;
hr: izvori, vanjske poveznice, povezani članci, vidi još, bilješke, vidi također;
hu: jegyzetek, források, további információk, kapcsolódó szócikkek, lásd még, hivatkozások, külső hivatkozások;
hy: ծանոթագրություններ, արտաքին հղումներ, տես նաև, աղբյուրներ;
id: referensi, pranala luar, lihat pula, lihat juga, catatan, catatan kaki, rujukan, daftar pustaka, bacaan lanjutan;
it: annotazioni, esplicative, bibliografiche, riferimenti, link esterni, note esplicative, approfondimenti;
ja: 脚注, 注釈, 出典, 外部リンク, 関連項目, 参考文献, 注, 註, 参照, 関連書籍, 脚注・出典, 注釈・出典, 関連文献, 参考資料;
ka: სქოლიო, რესურსები ინტერნეტში, იხილეთ აგრეთვე;
ko: 각주, 외부 링크, 같이 보기, 참고 문헌, 참고문헌, 주석, 출처, 참고 자료, 내용주, 참조주;
la: notae, nexus externi, vide etiam, bibliographia, fontes;
lt: šaltiniai, nuorodos, taip pat skaitykite, išnašos;
lv: atsauces, ārējās saites, skatīt arī, piezīmes;
ms: rujukan, pautan luar, lihat juga, nota, catatan, nota kaki, bacaan lanjut;
nl: noten, noten en referenties, bronnen, noten en/of referenties, zie ook, weblinks, verder lezen, referentie;
no: referanser, eksterne lenker, se også, noter, kilder, fotnoter, eksterne lenkjer, kjelder, referansar, sjå òg, lenker;
pl: bibliografia, przypis, zobacz, link zewnętrzny, adnotacje, źródła i przypisy;
pt: notas, bibliografia, fontes, ver também, ligação externa, links externos, veja também, notas de rodapé;
ro: note, referințe, legături externe, vezi și, bibliografie, lectură suplimentară, note și referințe, surse, referinţe;
ru: комментарии, сноски и источники, примечания и ссылки, внешние ссылки, смотри также, смотрите также, библиография;
sk: referencie, externé odkazy, pozri aj, poznámky, iné projekty, poznámky a referencie;
sl: sklici, zunanje povezave, glej tudi, opombe, viri, viri in opombe, sklici in opombe;
sr: референце, спољашње везе, види још, види још:, напомене, извори, reference, spoljašnje veze, vidi još, napomene;
sv: källa, noter och referenser, tryckta källor, externa länkar, se också, anmärkningar, fortsatt läsning;
th: อ้างอิง, แหล่งข้อมูลอื่น, ดูเพิ่ม, เชิงอรรถ, หมายเหตุ, บรรณานุกรม, รายการอ้างอิง;
tr: kaynakça, dış bağlantılar, ayrıca bakınız, notlar, kaynaklar, dipnotlar, konuyla ilgili yayınlar, bibliyografya;
uk: примітки, посилання, див. також, джерела, виноски, див. також:, зовнішні посилання, примітки та джерела;
vi: tham khảo, liên kết ngoài, xem thêm, chú thích, ghi chú, đọc thêm, nguồn tham khảo, thư mục;
zh: 参考文献, 參考文獻, 外部链接, 外部連結, 参见, 參見, 注释, 註釋, 参考资料, 參考資料, 脚注, 腳註, 備註, 备注, 相關條目, 相关条目,
延伸阅读, 延伸閱讀, 参看, 參看, 註解, 注脚
"""
END_MATTER_OF = {
    language: frozenset(headings.split(", "))
    for language, headings in (entry.split(": ", 1) for entry in " ".join(_END_MATTER_OF.split()).split("; "))
}
# Codes of languages that use the headings of another language in the table.
_SAME_LANGUAGE = """
nb no, nn no, sh sr, bs hr, als de, bar de, be-tarask be, simple en, yue zh, zh-yue zh, wuu zh, arz ar, ary ar, zh-classical zh, gsw de
"""
SAME_LANGUAGE = dict(entry.split() for entry in _SAME_LANGUAGE.split(", "))

# The words that begin a redirect, between "#" and a link. Each wiki also accepts the English word.
_REDIRECT_WORDS = """
aanstuur تحويل yönləndirmə istiqamətləndirmə перанакіраванне перанакіраваньне пренасочване виж পুনর্নির্দেশ adkas redirecció přesměruj
ail-cyfeirio ailgyfeirio omdirigering omdiriger weiterleitung ανακατευθυνση redirect alidirekti alidirektu redirección redireccion suuna
birzuzendu تغییر_مسیر تغییرمسیر ohjaus uudelleenohjaus redirection athsheoladh הפניה पुनर्प्रेषित अनुप्रेषित preusmjeri átirányítás
վերահղում alih tilvísun rinvia rinvio rimando 転送 リダイレクト გადამისამართება айдау 넘겨주기 peradresavimas пренасочување види
തിരിച്ചുവിടുക पुनर्निर्देशन lencong wiederleiden doorverwijzing patrz przekieruj tam redirecionamento redirecteaza перенаправление перенапр
पुनर्निदेशन presmeruj preusmeritev ridrejto преусмери preusmeri வழிமாற்று దారిమార్పు เปลี่ยนทาง yönlendirme yönlendi̇rme yönlendir yönlendi̇r
yünältü перенаправлення виклад رجوع_مکرر yoʻnaltirish đổi ווייטערפירן 重定向 重新導向
"""
REDIRECT_WORDS = frozenset(_REDIRECT_WORDS.split())
