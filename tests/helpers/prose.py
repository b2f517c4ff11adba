"""Made-up prose in several languages and scripts, for tests of cleaning and deduplication."""

import random

# One text of some 500 characters for each language.
PARAGRAPHS = {
    "de": (
        "Der Fluss entspringt in den Hügeln nördlich der Stadt und fließt an mehreren Dörfern vorbei, bevor er das Meer erreicht. "
        "An seinen Ufern leben seit vielen Jahrhunderten Menschen, die von der Fischerei und vom Handel mit Holz lebten. Im "
        "Frühling steigt das Wasser oft so hoch, dass die Wiesen überflutet werden. Eine alte Brücke aus Stein verbindet den "
        "Markt mit der Kirche, und in einem kleinen Museum kann man Werkzeuge sehen, mit denen die Boote gebaut wurden. Heute "
        "kommen vor allem Wanderer in das Tal."
    ),
    "fr": (
        "La rivière prend sa source dans les collines au nord de la ville et traverse plusieurs villages avant de rejoindre la "
        "mer. Sur ses rives, des familles vivent depuis des siècles de la pêche et du commerce du bois. Au printemps, l'eau monte "
        "parfois si haut que les prairies sont inondées. Un vieux pont de pierre relie le marché à l'église, et dans un petit "
        "musée on peut voir les outils qui servaient à construire les bateaux. Aujourd'hui, ce sont surtout des promeneurs qui "
        "viennent dans la vallée."
    ),
    "es": (
        "El río nace en las colinas al norte de la ciudad y pasa por varios pueblos antes de llegar al mar. En sus orillas viven "
        "desde hace siglos familias que se dedican a la pesca y al comercio de la madera. En primavera el agua sube tanto que los "
        "prados quedan inundados. Un viejo puente de piedra une el mercado con la iglesia, y en un pequeño museo se pueden ver "
        "las herramientas con las que se construían los barcos. Hoy en día son sobre todo los caminantes quienes visitan el valle "
        "durante el verano."
    ),
    "it": (
        "Il fiume nasce nelle colline a nord della città e attraversa diversi villaggi prima di arrivare al mare. Sulle sue rive "
        "vivono da secoli famiglie che si dedicano alla pesca e al commercio del legno. In primavera l'acqua sale così tanto che "
        "i prati vengono allagati. Un vecchio ponte di pietra unisce il mercato alla chiesa, e in un piccolo museo si possono "
        "vedere gli attrezzi con cui si costruivano le barche. Oggi sono soprattutto gli escursionisti che vengono nella valle "
        "per camminare nei boschi."
    ),
    "pt": (
        "O rio nasce nas colinas ao norte da cidade e passa por várias aldeias antes de chegar ao mar. Nas suas margens vivem há "
        "séculos famílias que se dedicam à pesca e ao comércio da madeira. Na primavera a água sobe tanto que os campos ficam "
        "inundados. Uma velha ponte de pedra liga o mercado à igreja, e num pequeno museu podem ver-se as ferramentas com que se "
        "construíam os barcos. Hoje em dia são sobretudo os caminhantes que visitam o vale durante o verão, e muitos deles não "
        "querem voltar para casa."
    ),
    "nl": (
        "De rivier ontspringt in de heuvels ten noorden van de stad en stroomt langs verschillende dorpen voordat zij de zee "
        "bereikt. Aan haar oevers wonen al eeuwen mensen die van de visserij en van de handel in hout leven. In het voorjaar "
        "stijgt het water soms zo hoog dat de weilanden onder water staan. Een oude stenen brug verbindt de markt met de kerk, en "
        "in een klein museum kun je het gereedschap zien waarmee de boten werden gebouwd. Tegenwoordig komen er vooral wandelaars "
        "naar het dal."
    ),
    "sv": (
        "Floden börjar i kullarna norr om staden och rinner förbi flera byar innan den når havet. Längs stränderna har människor "
        "bott i många hundra år, och de har levt av att fiska och av att handla med trä. På våren stiger vattnet ibland så högt "
        "att ängarna blir översvämmade. En gammal bro av sten förbinder torget med kyrkan, och på ett litet museum kan man se de "
        "verktyg som användes för att bygga båtarna. I dag är det mest vandrare som kommer till dalen, och många av dem stannar "
        "hela sommaren."
    ),
    "pl": (
        "Rzeka wypływa ze wzgórz na północ od miasta i mija kilka wsi, zanim dotrze do morza. Nad jej brzegami od stuleci "
        "mieszkają ludzie, którzy żyją z rybołówstwa i z handlu drewnem. Wiosną woda podnosi się tak wysoko, że zalewa łąki. "
        "Stary kamienny most łączy rynek z kościołem, a w małym muzeum można zobaczyć narzędzia, którymi budowano łodzie. Dzisiaj "
        "do doliny przyjeżdżają przede wszystkim turyści, którzy nie boją się długich spacerów, i wielu z nich wraca tam co roku. "
        "To jest piękne miejsce na odpoczynek."
    ),
    "ru": (
        "Река начинается в холмах к северу от города и течёт мимо нескольких деревень, прежде чем впадает в море. На её берегах "
        "уже много веков живут люди, которые занимаются рыбной ловлей и торгуют лесом. Весной вода поднимается так высоко, что "
        "заливает луга. Старый каменный мост соединяет рынок с церковью, а в маленьком музее можно увидеть инструменты, с помощью "
        "которых строили лодки. Сегодня в долину приезжают в основном туристы, и многие из них не хотят возвращаться домой."
    ),
}

# Parts of sentences, in the order in which they follow each other.
UNSPACED = {
    "zh": (
        ["每天早上，", "去年冬天，", "上个星期，", "很久以前，", "到了周末，", "下雨的时候，", "有一年春天，", "节日过后，"],
        ["老师", "学生", "医生", "农民", "工程师", "孩子们", "邻居", "科学家", "记者", "渔民", "木匠", "司机"],
        ["在村子旁边的河边", "在城里的图书馆", "在山上的小屋里", "在火车站附近", "在新建的学校里", "在旧市场的后面", "在海边的公园"],
        [
            "讨论怎样修理旧的桥梁",
            "研究当地植物的生长情况",
            "记录天气和水位的变化",
            "给朋友写了一封很长的信",
            "学习了许多关于历史的知识",
            "把粮食送到了需要帮助的家庭",
            "发现了一条通往海边的小路",
            "为老人准备了热汤和面包",
            "看见一群鸟从树林上空飞过",
        ],
        ["，因为他们希望生活变得更好。", "，但是没有人知道结果会怎样。", "，这件事情后来被写进了书里。", "，大家都觉得非常高兴。", "。"],
    ),
    "ja": (
        ["毎朝、", "去年の冬に、", "先週、", "ずっと昔、", "週末になると、", "雨の日に、", "ある春の日、", "祭りのあとで、"],
        ["先生は", "学生たちは", "医者は", "漁師は", "私の祖父は", "近所の人々は", "研究者は", "大工は", "子どもたちは", "記者は"],
        ["川のそばの村で", "町の図書館で", "山の上の小屋で", "駅の近くで", "新しい学校で", "古い市場の裏で", "海辺の公園で"],
        [
            "古い橋を直す方法について話し合った",
            "植物の育ち方を詳しく調べた",
            "天気と水位の変化を記録した",
            "友だちに長い手紙を書いた",
            "歴史について多くのことを学んだ",
            "困っている家族に食べ物を届けた",
            "海へ続く細い道を見つけた",
            "お年寄りに温かいスープを作った",
            "森の上を飛ぶ鳥の群れを眺めた",
        ],
        ["。それは後に本に書かれた。", "。しかし、結果は誰にも分からなかった。", "。みんなはとても喜んでいた。", "。"],
    ),
    "th": (
        ["ทุกเช้า", "ฤดูหนาวปีที่แล้ว", "สัปดาห์ก่อน", "เมื่อนานมาแล้ว", "ในวันหยุด", "ตอนที่ฝนตก", "หลังงานเทศกาล"],
        ["ครู", "นักเรียน", "หมอ", "ชาวนา", "ชาวประมง", "เพื่อนบ้าน", "นักวิทยาศาสตร์", "ช่างไม้", "เด็กๆ", "ผู้สื่อข่าว"],
        ["ที่หมู่บ้านริมแม่น้ำ", "ในห้องสมุดของเมือง", "บนภูเขา", "ใกล้สถานีรถไฟ", "ในโรงเรียนใหม่", "หลังตลาดเก่า", "ที่สวนริมทะเล"],
        [
            "พูดคุยเรื่องการซ่อมสะพานเก่า",
            "ศึกษาการเติบโตของพืชในท้องถิ่น",
            "บันทึกการเปลี่ยนแปลงของอากาศและระดับน้ำ",
            "เขียนจดหมายยาวถึงเพื่อน",
            "เรียนรู้เรื่องราวเกี่ยวกับประวัติศาสตร์",
            "นำอาหารไปให้ครอบครัวที่ต้องการความช่วยเหลือ",
            "พบทางเดินเล็กๆ ที่นำไปสู่ทะเล",
            "เตรียมซุปร้อนและขนมปังให้คนชรา",
            "เห็นฝูงนกบินผ่านป่า",
        ],
        [" เพราะพวกเขาหวังว่าชีวิตจะดีขึ้น ", " แต่ไม่มีใครรู้ว่าผลจะเป็นอย่างไร ", " ต่อมามีคนเขียนเรื่องนี้ไว้ในหนังสือ ", " ทุกคนมีความสุขมาก "],
    ),
}


def unspaced_documents(language: str, count: int, *, sentences: int = 30) -> list[str]:
    """Return different documents of a language without blanks between words, of about a thousand characters each."""
    generator = random.Random(f"{language} {count}")
    return ["".join(generator.choice(part) for _ in range(sentences) for part in UNSPACED[language]) for _ in range(count)]
